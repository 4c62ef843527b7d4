"""DP-FedAvg and its epsilon, with a fixed or an adaptive bound of the updates.

Sources: McMahan et al., "Learning differentially private recurrent language models" (ICLR 2018),
Algorithm 1; Andrew et al., "Differentially private learning with adaptive clipping" (NeurIPS 2021),
Algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.spec import Spec
from fedsim.federation import Device, Server
from fedsim.federation.codecs import Codec
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Aggregation, Draws, Entry, Protection, changes
from fedsim.strategies.state import State

Accountant = Literal["rdp", "pld"]


def clipped(change: NDArray[np.floating], clip: float) -> Floats:
    """Scale a change of a model down to an L2 norm of at most C; a shorter change is unchanged.

    Args:
        change: the change, [d].
        clip: C, the greatest norm.

    Returns:
        min(1, C / ||change||) change, float64 [d].
    """
    exact = change.astype(np.float64)
    norm = float(np.sqrt(exact @ exact))
    if norm <= clip:
        return exact
    return exact * (clip / norm)


@pure
def private_mean(
    models: list[Floats32],
    clip: float | None,
    noise: float,
    divide_by: int | None,
    adapted: bool,
    rng: Generator,
) -> Floats:
    """Compute the model after a private round, w + (sum of clipped changes + noise) / n.

    A change is a client's update minus the model w that it received.

    Args:
        models: the model w [d], then the clipping bound C [1] if ``adapted`` is true, then the
            changes [d].
        clip: C, the maximum L2 norm of a change, if ``adapted`` is false; None: changes are not
            clipped, and get no noise.
        noise: standard deviation of the noise of each coordinate, divided by C.
        divide_by: n; None: the count of changes.
        adapted: whether ``models`` contains C.
        rng: source of the noise.

    Returns:
        The next model, float64 [d]; w if there are no changes.
    """
    model = models[0].astype(np.float64)
    if adapted:
        bound: float | None = float(models[1][0])
        client_changes = models[2:]
    else:
        bound = clip
        client_changes = models[1:]
    if not client_changes:
        return model
    total = np.zeros(len(model))
    for change in client_changes:
        total += change if bound is None else clipped(change, bound)
    if noise:
        deviation = noise * (bound or 0.0)  # without a bound there is no noise
        total += rng.normal(scale=deviation, size=len(total))
    return model + total / (divide_by or len(client_changes))


@pure
def adapted_clip(
    models: list[Floats32],
    clip: float | None,
    quantile: float,
    lr: float,
    noise: float,
    divide_by: int | None,
    rng: Generator,
) -> NDArray[np.floating]:
    """Compute the next clipping bound, C exp(-lr (b - quantile)), from the changes of a round.

    A change is a client's update minus the model that it received. It is short if its L2 norm is at
    most C. b is the noisy share of short changes in all finite changes. With b_i = 1 for a short
    change and 0 for any other, b is (sum (b_i - 1/2) + N(0, noise^2)) / n + 1/2, where N is a
    normal draw.

    Args:
        models: C [1] if ``clip`` is None, then the changes [d].
        clip: C; None if ``models`` contains C.
        quantile: the target of b.
        lr: the rate at which C adapts.
        noise: standard deviation of the noise of the count.
        divide_by: n; None: the count of finite changes.
        rng: source of the noise.

    Returns:
        The next C, float64 [1]; C itself if no change is finite.
    """
    if clip is None:
        bound = float(models[0][0])
        client_changes = models[1:]
    else:
        bound = clip
        client_changes = models
    finite = [change.astype(np.float64) for change in client_changes if np.isfinite(change).all()]
    norms = [float(np.linalg.norm(change)) for change in finite]
    if not norms:
        return np.array([bound])
    centred_count = sum((norm <= bound) - 0.5 for norm in norms)  # sum of b_i - 1/2
    noisy_share = (centred_count + rng.normal(scale=noise)) / (divide_by or len(norms)) + 0.5
    next_bound = np.array([bound * np.exp(-lr * (noisy_share - quantile))])
    return next_bound.clip(1e-30, 1e30)  # stays positive and finite, also as float32


@pure
def clipped_and_noised(models: list[Floats32], clip: float, noise: float, rng: Generator) -> Floats:
    """Make a client's trained model private: clip its difference from its start, and add noise.

    Args:
        models: the trained model, and its start, the model that the client had received, [d] each.
        clip: C, the maximum L2 norm of the difference.
        noise: standard deviation of the noise of each coordinate, divided by C.
        rng: source of the noise.

    Returns:
        The start plus the clipped difference plus the noise, float64 [d].
    """
    start = models[1].astype(np.float64)
    change = clipped(models[0] - start, clip)
    return start + change + rng.normal(scale=noise * clip, size=len(start))


@lru_cache(maxsize=256)
def _divergence(noise: float, share: float) -> tuple[Sequence[float], Sequence[float]]:
    """Compute the privacy loss of a round, as Renyi divergences of several orders.

    The round releases the sum of the changes of randomly drawn devices, with Gaussian noise.

    Args:
        noise: standard deviation of the noise, divided by the maximum norm of a change.
        share: probability with which each device is drawn, 0 to 1.

    Returns:
        The orders of the divergence, and the divergence of each order.
    """
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    verbosity = logging.get_verbosity()
    # The accountant warns of each order that it leaves out. The bounds of the other orders still
    # hold.
    logging.set_verbosity(logging.ERROR)
    accountant.compose(dp.PoissonSampledDpEvent(share, dp.GaussianDpEvent(noise)))
    logging.set_verbosity(verbosity)
    return accountant.orders, accountant.rdp


def epsilon(noise: float, draws: Draws, delta: float, accountant: Accountant = "rdp") -> float:
    """Compute the epsilon of differential privacy that all rounds together have spent.

    Args:
        noise: standard deviation of the noise in the sum of changes, divided by the maximum norm of
            a change.
        draws: (count of clients of a round, count of devices that they were drawn from) -> count of
            such rounds.
        delta: the probability with which epsilon may be exceeded.
        accountant: ``rdp`` (Renyi divergence) or ``pld`` (privacy loss distribution).

    Returns:
        Epsilon of (epsilon, ``delta``)-differential privacy.
    """
    if accountant == "pld":
        return _epsilon_by_loss_distributions(noise, draws, delta)
    return _epsilon_by_divergences(noise, draws, delta)


def _epsilon_by_loss_distributions(noise: float, draws: Draws, delta: float) -> float:
    """Compute the epsilon of all rounds by the distributions of the privacy loss (``epsilon``)."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    losses: list[Any] = []  # one for all rounds with equal counts
    for (clients, devices), rounds in sorted(draws.items()):
        # Losses are rounded up to multiples of the interval, so that epsilon is never too small.
        loss = from_gaussian_mechanism(
            noise, sampling_prob=clients / devices, value_discretization_interval=1e-3
        )
        losses.append(loss if rounds == 1 else loss.self_compose(rounds))
    composed = reduce(type(losses[0]).compose, losses)
    return float(composed.get_epsilon_for_delta(delta))


def _epsilon_by_divergences(noise: float, draws: Draws, delta: float) -> float:
    """Compute the epsilon of all rounds by Renyi divergences (``epsilon``)."""
    from dp_accounting.rdp import compute_epsilon

    orders: Sequence[float] = ()  # equal in all rounds
    divergences = []
    for (clients, devices), rounds in sorted(draws.items()):
        orders, divergence = _divergence(noise, clients / devices)
        divergences.append(np.multiply(rounds, divergence))  # divergences of rounds add up
    total = np.sum(divergences, axis=0)
    return float(compute_epsilon(orders, total, delta)[0])


class AdaptiveClip(Spec):
    """Keys of a clipping bound C that adapts to the norms of clients' changes.

    After each round C becomes C exp(-lr (b - quantile)). Here b is the share of changes whose L2
    norm is at most C (Andrew et al., "Differentially private learning with adaptive clipping",
    2021).

    Attributes:
        quantile: gamma, the share of changes that are to be shorter than C.
        lr: eta_C, the rate at which C adapts.
        count_noise: sigma_b, standard deviation of the noise of the count behind b; in the paper a
            20th of a round's clients.
    """

    quantile: float = Field(default=0.5, gt=0.0, lt=1.0)
    lr: float = Field(default=0.2, gt=0.0, le=10.0)
    count_noise: float = Field(ge=0.0, le=1e6)


@dataclass
class PrivateState(State):
    """State of the aggregation ``private`` for one model: the adaptive clipping bound.

    Attributes:
        clip: Adaptive bound C [1]; None before the first round, and always for a fixed bound.
    """

    clip: Ref | None = None


class Private(Aggregation):
    """The mean of changes clipped to the L2 norm C, with Gaussian noise.

    The change of a client is its update u_i minus the model w_i that it received. The next model is
    w + (sum clip(u_i - w_i) + N(0, (z C)^2)) / n, with equal weights. With ``central`` noise the
    server clips changes, and adds the noise once to the sum. With ``local`` noise each client clips
    its change, and adds N(0, (z C)^2) to the change before it answers. Each update is then
    protected by its own noise alone.

    With ``adaptive``, C follows the norms of the changes. The server also needs the count of
    changes shorter than C, to which it adds noise of standard deviation sigma_b (``count_noise``).
    The noise of the sum is then larger, (z^-2 - (2 sigma_b)^-2)^(-1/2) C, so that both releases
    together spend as much privacy as z alone (Theorem 1 of Andrew et al., 2021). A client that
    disconnects changes neither central noise nor epsilon; the model only moves less.

    The record of each round has the epsilon of (epsilon, delta)-differential privacy that all
    rounds until then have spent. This epsilon bounds how far the run can differ from a run in which
    one device's updates are equal to the models that it received.

    - Epsilon covers the aggregates alone, not other contents of messages, such as a device's group
      or sample count.
    - Each round counts as one release of a device's update, which takes part with probability q.
      Rounds with several groups, or without an update, count as one release too.
    - If all clients of a round are drawn uniformly from the available devices, q is the share of
      the devices that are drawn. Epsilon is then computed as if each device took part independently
      (Poisson sampling), as in the paper, although exactly K clients are drawn. In all other
      rounds, and with local noise, q is 1.
    - Strategies that use updates or losses before clipping refuse to compute epsilon.

    Attributes:
        clip: C, the maximum L2 norm of a change; with ``adaptive`` the initial C.
        noise: z, the noise multiplier. 0: changes are clipped, and nothing is private.
        where: the place at which noise is added: ``central``, the server; ``local``, each client.
        adaptive: the adaptation of C, with central noise only; None: C is fixed.
        divide_by: n, the divisor of the sum of changes. None: the number of updates that a round
            asks for, of all groups; with local noise, and at edge servers, the number of received
            updates.
        account: whether epsilon is computed (needs the package dp-accounting).
        accountant: method to compute epsilon: ``rdp``, Renyi divergences, an upper bound; ``pld``,
            privacy loss distributions, nearly exact, which take about 0.1 s in each round.
        delta: delta of the recorded (epsilon, delta); None: devices^-1.1, as in the paper.
    """

    protection: ClassVar[Protection | None] = "private"
    uses_weights: ClassVar[bool] = False
    kind: Literal["private"] = "private"
    clip: float = Field(default=1.0, gt=0.0, le=1e12)
    noise: float = Field(default=1.0, ge=0.0, le=1e6)
    where: Literal["central", "local"] = "central"
    adaptive: AdaptiveClip | None = None
    divide_by: int | None = Field(default=None, ge=1)
    account: bool = True
    accountant: Accountant = "rdp"
    delta: float | None = Field(default=None, gt=0.0, lt=1.0)

    @model_validator(mode="after")
    def _check_privacy(self) -> Self:
        """Check that epsilon can be computed, and that ``adaptive`` fits ``where`` and ``noise``.

        Raises:
            ValueError: the package dp-accounting is missing, or a key does not fit.
        """
        if self.account and self.noise and find_spec("dp_accounting") is None:
            raise ValueError(
                "'account' is true, which needs a package: pip install 'dp-accounting>=0.6' "
                "installs it; allowed is false too"
            )
        if self.adaptive is None:
            return self
        if self.where == "local":
            raise ValueError(
                "'adaptive' is given and 'where' is 'local'; a clip that the server adapts "
                "needs 'central'"
            )
        # otherwise the noisy count alone spends all privacy, and ``noise_of_sum`` is not defined
        if self.noise and 2 * self.adaptive.count_noise <= self.noise:
            raise ValueError(
                f"'adaptive.count_noise' is {self.adaptive.count_noise:g}; with noise "
                f"{self.noise:g} allowed is more than "
                f"{self.noise / 2:g}"
            )
        return self

    @property
    def why_single_updates(self) -> str | None:
        if self.where == "local":
            return None
        return (
            "the aggregation 'private' has the server clip each update; allowed is where = 'local'"
        )

    def why_not(self, codec: Codec) -> str | None:
        if self.where == "local" and codec.lengthens:
            return (
                "makes changes longer again that a client has clipped; allowed is where = 'central'"
            )
        return None

    @property
    def accounts(self) -> bool:
        return self.account and self.noise > 0

    def for_rounds_of(self, updates: int) -> Aggregation:
        if self.divide_by is not None or self.where == "local":
            return self
        # n is fixed before clients answer, as the count of answers is private too.
        return self.model_copy(update={"divide_by": updates})

    @property
    def noise_of_sum(self) -> float:
        """Standard deviation of the noise in the sum of changes, relative to the clipping bound.

        If the clipping bound is fixed, it is the key ``noise``. If the bound adapts (key
        ``adaptive``), the server also releases a noisy count of the changes within the bound. The
        noise of the sum is then larger, so that sum and count together spend as much privacy as
        ``noise`` for the sum alone.
        """
        if self.adaptive is None or not self.noise:
            return self.noise
        return float((self.noise**-2 - (2 * self.adaptive.count_noise) ** -2) ** -0.5)

    def on_device(self, device: Device, update: Ref, start: Ref) -> Ref:
        if self.where == "central":
            return update
        stream = ("strategy/local-noise", update.serial)
        return device.apply(
            clipped_and_noised, [update, start], clip=self.clip, noise=self.noise, stream=stream
        )

    State = PrivateState

    def combine(
        self,
        server: Server,
        state: PrivateState,
        entries: Sequence[Entry],
        weights: Sequence[float],
        otherwise: Ref,
    ) -> Ref:
        """Return the next model: the present model plus the noisy mean of the clipped changes.

        A change is an update minus the model from which it was trained. With ``adaptive`` the
        clipping bound of the next round is computed too, and stored in ``state``. With ``local``
        noise the clients have clipped their changes and added the noise, and the server takes the
        plain mean.

        Args:
            server: the run's server.
            state: state of the aggregation for this model, with the clipping bound.
            entries: the updates of the round; at least one.
            weights: not used, as all updates have equal weight.
            otherwise: the present model.
        """
        is_central = self.where == "central"
        client_changes = changes(server, entries)
        # this round uses the bound that the last round has adapted; the first round has none
        adapted_clips = [] if state.clip is None else [state.clip]
        stream_id = entries[0]["task"]  # unique, as a task is in one aggregation only
        if self.adaptive is not None:
            state.clip = server.models.apply(
                adapted_clip,
                [*adapted_clips, *client_changes],
                clip=None if adapted_clips else self.clip,
                quantile=self.adaptive.quantile,
                lr=self.adaptive.lr,
                noise=self.adaptive.count_noise,
                divide_by=self.divide_by,
                size=1,
                stream=("clip", stream_id),
            )
        return server.models.apply(
            private_mean,
            [otherwise, *adapted_clips, *client_changes],
            noise=self.noise_of_sum if is_central else 0.0,
            divide_by=self.divide_by,
            clip=self.clip if is_central else None,
            adapted=bool(adapted_clips),
            otherwise=otherwise,
            leave_out=True,  # leaves out models that are not finite
            stream=("noise", stream_id),
        )

    def spent(self, draws: Draws, devices: int) -> dict[str, float]:
        if not self.accounts:
            return {}
        delta = self.delta
        if delta is None:
            delta = min(0.5, devices**-1.1)
        noise = self.noise
        if self.where == "local":  # two clipped updates differ by up to twice the clip
            noise /= 2
            draws = {(1, 1): sum(draws.values())}  # no amplification: the noise is in each update
        return {"epsilon": epsilon(noise, draws, delta, self.accountant)}
