"""Selections by the speed that devices report: FedCS (2019) and FLANP (2022)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection, Updates
from fedsim.strategies.state import State
from fedsim.toolbox.selection import available_devices


class BySpeed(Selection):
    """Base of selections that ask candidates for their speed before they choose among them.

    A candidate is a device that the server may select for a round. It reports three durations (s)
    in 12 bytes: to receive a model, to train for a round, and to send a model.
    """

    def question(self, models: Sequence[Ref]) -> Contents:
        return {}

    def answer(
        self, device: Device, instruction: Instruction, result: LocalResult, params: Spec
    ) -> Contents:
        training_s = device.training_s(getattr(params, "local_epochs", 1))
        return {"resources": [device.model_s("down"), training_s, device.model_s("up")]}


class FedCS(BySpeed):
    """As many clients as are expected to finish a round by a deadline, selected greedily.

    Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous
    resources" (ICC 2019), Protocol 2 and Algorithm 3. In each round the server asks candidates,
    which are drawn at random, for three durations (12 bytes; content ``resources``): to receive a
    model, to train, and to send a model. From these it predicts how long a round lasts. The server
    repeatedly adds the candidate that lengthens the predicted round least, as long as the round
    stays within the deadline ``time`` and has fewer clients than the strategy asks for.

    As in the paper, the prediction assumes that the model goes to all clients at once (the slowest
    download counts), that all clients train at the same time, and that they send their updates one
    after another. The durations omit jitter, outages and shared links, so that a round may take
    longer.

    Attributes:
        time: T_round, the longest predicted duration of a round (s). It counts from the moment when
            the server has all durations, and sends the model.
        candidates: number of devices that are asked for durations. If a round needs more clients,
            as many devices as it needs are asked.
        patience: time (s) after which candidates without an answer are left out; None: the server
            waits for all candidates.
    """

    kind: Literal["fedcs"] = "fedcs"
    time: PositiveSeconds
    candidates: int = Field(default=20, ge=1)
    patience: PositiveSeconds | None = None

    def select(
        self, server: Server, state: object, count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        return server.clients.sample(max(self.candidates, count), "select", *ids, among=among)

    async def choose(
        self, server: Server, state: object, count: int, answers: Answers
    ) -> list[int]:
        times = {device: tuple(answer["resources"]) for device, answer in answers.items()}
        return self.greedy(count, times)

    def greedy(self, count: int, times: Mapping[int, tuple[float, float, float]]) -> list[int]:
        """Select devices with which a round is predicted to end within ``self.time`` seconds.

        Step by step the candidate that lengthens the predicted round least is added, unless the
        round would then be too long. In the prediction all devices download and train at the same
        time, and send their updates one after another.

        Args:
            count: maximum count of devices.
            times: candidate ID -> durations (s) to receive a model, to train, and to send a model.

        Returns:
            IDs of the selected devices, in the order in which they were added.
        """
        candidates = dict(times)
        cohort: list[int] = []
        downloads_s = 0.0  # time until the last device of the cohort has received the model
        uploads_s = 0.0  # time from the last download until the last update
        while candidates and len(cohort) < count:
            predictions = {}  # downloads_s and uploads_s if the device joins the cohort
            for device, (down_s, training_s, up_s) in candidates.items():
                # its upload begins when it has trained and the uploads before have ended
                predictions[device] = (max(downloads_s, down_s), max(uploads_s, training_s) + up_s)
            best = min(predictions, key=lambda device: sum(predictions[device]))
            del candidates[best]
            if sum(predictions[best]) <= self.time:
                downloads_s, uploads_s = predictions[best]
                cohort.append(best)
        return cohort


@dataclass
class FLANPState(State):
    """State of the selection ``flanp``: the reported durations, and the present stage.

    A stage is a series of rounds with the same count of clients.

    Attributes:
        times: Device ID -> duration of a round (s) on each device that has reported its times.
        stage: n, the count of clients in the present stage; None before the first selection.
        round: Index of the open round, from 0.
        room: How many of the devices that were asked for their durations may still join the round.
            One entry for each call of ``select`` that has asked devices, removed when they have
            answered.
    """

    times: dict[int, float] = field(default_factory=dict)
    stage: int | None = None
    round: int = 0
    room: list[int] = field(default_factory=list)


class FLANP(BySpeed):
    """The fastest clients, whose number doubles in each stage.

    Source: Reisizadeh, Tziotis, Hassani, Mokhtari and Pedarsani, "Straggler-resilient federated
    learning" (2022), Algorithm 1 (implemented from memory, not from the paper's text). A stage is a
    series of rounds with the same number n of clients. The next stage has 2 n clients, so that the
    model is nearly trained when slow clients join. Within a stage the paper trains by FedGATE; here
    the strategy of the scenario trains.

    - Each device reports its durations once (12 bytes; content ``resources``): to receive a model,
      to train, and to send a model.
    - The clients of a round are the n fastest available devices by the sum of these durations, at
      most ``clients_per_round``; in the paper n grows to all devices.
    - A stage ends after a round in which the squared norm of the gradient of its clients' loss,
      times the count of their samples, is at most ``accuracy``. The paper's bound is 2 mu c: n
      clients with s samples each have the statistical accuracy c / (n s), and mu is the constant of
      strong convexity.
    - The gradient is estimated from the updates of the round, as the mean, weighted by samples, of
      (received model - update) / (learning rate x steps). For a single step without momentum the
      estimate is exact.

    In strategies that have a model for each group of clients, the squared norms for the groups'
    models are added. In runs without learning, a stage is one round. The beginning of each later
    stage is recorded among the run's events as ``stage``.

    Attributes:
        first: n, the number of clients, in the first stage.
        accuracy: 2 mu c, the largest product of the gradient's squared norm and the count of
            samples at which a stage ends.
        patience: time (s) after which a round no longer waits for devices that have not reported
            their durations; they are asked again in the next round. None: no limit.
    """

    kind: Literal["flanp"] = "flanp"
    why_single_updates: ClassVar[str | None] = (
        "the selection 'flanp' makes a gradient of single updates"
    )
    counts_steps: ClassVar[str | None] = (
        "the selection 'flanp' finds gradients from how far steps have led"
    )

    not_by_device: ClassVar[Mapping[str, str]] = {
        "lr": "'flanp' finds gradients by one learning rate",
    }

    first: int = Field(default=2, ge=1)
    accuracy: float = Field(gt=0.0, le=1e12)
    patience: PositiveSeconds | None = None

    def fewest(self, count: int) -> int:
        return min(self.first, count)

    State = FLANPState

    def select(
        self,
        server: Server,
        state: FLANPState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Return the first clients of a round, then the devices that are asked for their durations.

        The first clients are the fastest available devices of known durations, as many as the stage
        has clients but at most ``count``; they join the round. All other available devices are
        asked for their durations. When they have answered, ``choose`` selects the fastest of them
        if the stage lacks clients.

        Args:
            server: the run's server.
            state: the selection's memory, with the reported durations.
            count: largest count of clients.
            ids: the index of the round, from 0, which is stored in ``state``; and further integers
                if a round selects several times.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            Device IDs.
        """
        state.round = ids[0]
        if state.stage is None:
            state.stage = self.first
        available = available_devices(server, among)
        durations_s = {}
        unreported = list[int]()
        for device in available:
            if device in state.times:
                durations_s[device] = state.times[device]
            else:
                unreported.append(device)
        size = min(count, state.stage)
        fastest = _fastest(size, durations_s)
        if unreported:  # ``choose`` fills the free places when these devices have answered
            free_places = size - len(fastest)
            state.room.append(free_places)
        return fastest + unreported

    def asked_first(self, state: FLANPState, chosen: list[int]) -> list[int]:
        return [device for device in chosen if device not in state.times]

    async def choose(
        self, server: Server, state: FLANPState, count: int, answers: Answers
    ) -> list[int]:
        reported = {device: sum(answer["resources"]) for device, answer in answers.items()}
        state.times |= reported
        return _fastest(state.room.pop(0), reported)

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {"steps": Header(result.steps)}

    async def on_round_end(
        self, server: Server, state: FLANPState, received: Updates, models: ModelAssignment
    ) -> None:
        """Begin the next stage, with twice the clients, if the gradient of the loss is small.

        Called after a round. The stage ends if the squared norm of the gradient, estimated from the
        round's updates, times the samples of their clients is at most ``self.accuracy``. In runs
        without learning it ends after each round. Without any update nothing changes.

        Args:
            server: the run's server.
            state: the selection's memory, with the stage's count of clients.
            received: the updates of the round.
            models: not used.
        """
        clients = state.stage
        # ``stage`` is None until the strategy calls ``select``; some strategies select the first
        # clients themselves.
        if not received or clients is None:
            return
        samples = sum(entry["samples"] for entry in received)
        if server.models.learns:
            squared_norm = await self._squared_gradient_norm(server, state.round, received, samples)
            if not squared_norm * samples <= self.accuracy:  # also true if the norm is nan
                return
        state.stage = min(2 * clients, server.devices)
        if state.stage > clients:
            server.emit("stage", round=state.round, clients=state.stage)

    async def _squared_gradient_norm(
        self, server: Server, round_number: int, received: Updates, total: int
    ) -> float:
        """Estimate the squared norm of the training loss's gradient from the updates of a round.

        Each update's gradient is (received model - update) / (learning rate x steps), weighted by
        the client's share of all samples. If the clients received different models, such as those
        of several groups, the squared norms for the models are added.

        Args:
            server: the run's server.
            round_number: index of the round, which determines the learning rate.
            received: the updates of the round.
            total: sample count of the clients of all received updates together.

        Returns:
            The squared norm; not finite if an update is not finite.
        """
        lr = server.setting.lr_in(round_number)
        squares = []
        start_models = dict.fromkeys(entry["start"] for entry in received)  # each once, in order
        for start in start_models:
            entries = [entry for entry in received if entry["start"] == start]
            models = [start]
            shares = []  # for each entry its factor of (start - update)
            for entry in entries:
                models.append(entry["update"])
                divisor = max(total * lr * entry["contents"]["steps"], 1e-300)  # never 0
                shares.append(entry["samples"] / divisor)
            squares.append(server.models.apply(squared, models, size=1, shares=shares))
        return float(sum(value[0] for value in await server.models.values(squares)))


def _fastest(count: int, times: Mapping[int, float]) -> list[int]:
    """Return the ``count`` devices with the shortest times; of equal times the smaller IDs."""
    return sorted(sorted(times), key=times.__getitem__)[:count]


@pure
def squared(models: list[NDArray[np.float32]], shares: list[float]) -> NDArray[np.floating]:
    """Compute the squared L2 norm of a weighted sum of clients' changes of the model.

    The sum is over clients i of share_i (w - w_i).

    Args:
        models: the received model w, then the update w_i of each client, float32 [d] each.
        shares: share_i, the factor of each client's difference.

    Returns:
        The squared norm, float64 [1].
    """
    start, *updates = (model.astype(np.float64) for model in models)
    total = np.array(shares) @ (start - np.array(updates))
    return np.array([total @ total])
