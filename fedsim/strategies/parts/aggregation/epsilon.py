"""Epsilon over rounds of Gaussian noise, by ``dp-accounting`` (the extra ``privacy``)."""

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

Sampling = Literal["poisson", "without-replacement", "none"]
Accountant = Literal["rdp", "pld"]

_INTERVAL = 1e-3  # between the losses that a distribution keeps; rounded up, so that epsilon is never too small


def can_be_told() -> bool:
    """Whether the package is installed."""
    return find_spec("dp_accounting") is not None


@lru_cache(maxsize=256)
def _divergence(noise: float, sampling: Sampling, asked: int, there: int) -> tuple[Any, Any]:
    """Orders, and the Renyi divergence of one round at each."""
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.rdp import RdpAccountant

    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    event: Any = dp.GaussianDpEvent(noise)
    if sampling == "poisson":
        event = dp.PoissonSampledDpEvent(asked / there, event)
    elif sampling == "without-replacement":
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.GaussianDpEvent(noise / 2)  # 2 C apart at most
        event = dp.SampledWithoutReplacementDpEvent(there, asked, event) if asked < there else event
    accountant = RdpAccountant(neighboring_relation=relation)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it warns of each order that it leaves out, which is harmless
    accountant.compose(event)
    logging.set_verbosity(verbosity)
    return accountant.orders, accountant.rdp


@lru_cache(maxsize=8)
def _losses(noise: float, rate: float, rounds: int) -> Any:
    """The distribution of the privacy loss of so many rounds."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=_INTERVAL)
    return one if rounds == 1 else one.self_compose(rounds)


def epsilon(
    noise: float, sampling: Sampling, draws: Mapping[tuple[int, int], int], delta: float, accountant: Accountant = "rdp"
) -> float:
    """Epsilon of rounds, which need not hold with probability ``delta``.

    Args:
        noise: the noise's standard deviation over the longest that an update can be.
        sampling: ``poisson``: each client is drawn by itself, one device more or less. ``without-replacement``: so many
            exactly, one device's updates replaced by others. ``none``: all are in every round.
        draws: (clients drawn, devices from which) -> how many rounds.
        delta, accountant: see ``Private``.
    """
    from dp_accounting.rdp import compute_epsilon

    if sampling == "none":
        draws = {(1, 1): sum(draws.values())}
    if accountant == "pld":
        rates = [(asked / there, rounds) for (asked, there), rounds in sorted(draws.items())]
        compose: Callable[[Any, Any], Any] = lambda one, other: one.compose(other)  # noqa: E731
        return float(reduce(compose, [_losses(noise, *rate) for rate in rates]).get_epsilon_for_delta(delta))
    found = [(_divergence(noise, sampling, *drawn), rounds) for drawn, rounds in sorted(draws.items())]
    total = np.sum([np.multiply(rounds, divergence) for (_, divergence), rounds in found], axis=0)
    return float(compute_epsilon(found[0][0][0], total, delta)[0])
