"""Selections that go by what clients say of their losses or their speed: power-of-choice, Oort, FedCS, FLANP."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.arrays import Floats
from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation import Contents, Device, Header, Instruction, Lazy, LocalResult, Server, TaskEnd
from fedsim.language.spec import OnlyWith, Spec
from fedsim.language.units import PositiveSeconds
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection, Updates, drawn, lowest
from fedsim.world.task import Computation, Evaluate


class PowerOfChoice(Selection):
    """Of d candidates, drawn without replacement with probabilities proportional to their samples, those with the highest loss.

    Source: Cho, Wang and Joshi, "Towards understanding biased client selection" (AISTATS 2022), section 3, pi_pow-d. Each
    candidate receives the present model (d parameters; ``loss-query``), tests it on its own training data, which takes a
    forward pass over them, and answers with its loss (4 bytes; ``loss``). In a strategy with groups it is
    asked about its group's model, without a group about all of them, and the least loss counts. With ``samples`` it estimates
    the loss on so many samples, drawn anew each time (section 5, pi_cpow-d). With ``losses = "reported"`` (section 5,
    pi_rpow-d) nobody is asked: the loss of the last local epoch counts that a client has sent with its update (4 bytes),
    infinity for one that never did.

    Sample counts are those sent with updates; a client that has sent none counts as the mean of the others. Without learning
    the candidates drawn first are taken. Looks at every device that is there: O(population).

    State: ``samples``; with reports ``losses``, both by device, and ``reports``, those of the open round.

    Attributes:
        candidates: d; at least as many as are wanted are drawn.
        losses: see above.
        samples: b, on which a candidate tests the model; None: on all that it has.
        patience: candidates who have not answered by then (s) are not chosen; None: all are waited for.
    """

    kind: Literal["power-of-choice"] = "power-of-choice"
    candidates: int = Field(default=20, ge=1)
    losses: Literal["asked", "reported"] = "asked"
    samples: Annotated[int | None, Field(ge=1), OnlyWith("losses", values=("asked",))] = None
    patience: Annotated[PositiveSeconds | None, OnlyWith("losses", values=("asked",))] = None

    @property
    def asks(self) -> bool:
        return self.losses == "asked"

    @property
    def needs_model(self) -> bool:
        return self.asks

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        there = server.clients.online() if among is None else [device for device in among if server.clients.idle(device)]
        told = state.setdefault("samples", {})
        usual = sum(told.values()) / len(told) if told else 1.0
        weights = np.array([told.get(device, usual) for device in there], dtype=np.float64)
        variates = server.rng("select", *ids).standard_exponential(server.devices)[there]
        candidates = [there[place] for place in drawn(weights, max(self.candidates, count), variates)]
        if self.asks:
            return candidates
        losses = state.setdefault("losses", {})
        return lowest(candidates, count, lambda device: -losses.get(device, math.inf))

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if "trained-on" in message.contents:
            state.setdefault("samples", {})[message.device] = message["trained-on"]
            if not self.asks:
                state.setdefault("reports", {})[message.device] = message["training-loss"]

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        reports = state.pop("reports", {})
        if server.models.learns:
            found = await server.models.numbers(list(reports.values()))
            state.setdefault("losses", {}).update(zip(reports, (_known(numbers) for numbers in found), strict=True))

    def question(self, models: Sequence[Ref]) -> Contents:
        return {"loss-query": list(models)}

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        candidates = list(answers)
        if not server.models.learns:
            return candidates[:count]
        found = await server.models.numbers([answers[device]["loss"] for device in candidates])
        losses = dict(zip(candidates, (_known(numbers) for numbers in found), strict=True))
        return lowest(candidates, count, lambda device: -losses[device])

    def look(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        return (Evaluate(tuple(instruction["loss-query"]), samples=self.samples),)

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, params: Spec) -> Contents:
        assert result.tested is not None
        return {"loss": Lazy("losses", result.tested)}

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        loss = {} if self.asks or result.trained is None else {"training-loss": Lazy("loss", result.trained)}
        return {"trained-on": Header(result.samples), **loss}


def _known(losses: Floats) -> float:
    """The least of the losses; one that is no number is as high as can be."""
    return float(np.nan_to_num(losses.min(), nan=math.inf, posinf=math.inf, neginf=-math.inf))


_FIRST, _BY = 30.0, 5.0  # of the published code
_NEVER = (0.0, 0, 0.0)  # U, L and D of a client that was never heard


class Oort(Selection):
    """The clients of the highest utility, and some that have never been heard.

    Source: Lai et al., "Oort: efficient federated learning via guided participant selection" (OSDI 2021), Algorithm 1. The
    statistical utility U of a client is its samples times the root mean square of their losses, each taken to
    be the mean of the client's last epoch, which it sends with its update (4 bytes). In round R the utility of a client that
    was last heard in round L and then took D is

        Util = (min(U, the ``clip`` quantile of all) + sqrt(0.1 ln R / L)) (T / D)^penalty, the last factor where D > T.

    (1 - epsilon) of those wanted are drawn, with probabilities proportional to Util, from all whose Util is at least ``cutoff``
    times that of the last who would be among the best. The others are of those never heard: at random from those never asked,
    then those that were late, after the shortest time. epsilon falls from ``exploration`` by ``decay`` a round to
    ``least_exploration``. A client that was asked ``most_times`` is asked only where there is nobody else. The pacer: T begins
    at ``pacer_step`` and grows by it in each round in which the utility of the last ``window`` rounds is less than that of the
    ``window`` rounds before. With ``pacer = "published-code"`` T is a percentile of the times D of all clients that were heard:
    it begins at the 30th, and after each ``window`` rounds is raised by 5 where the utility of the window is within 10 % of
    that before, and lowered by 5 where it differs by five times and more; from 100 on no client is too slow.

    A client that is late has taken at least so long: its D is known, but it is not heard. Nothing is learnt of clients whom a
    strategy has chosen by itself (in a sweep). Without learning all losses are 1. Without rounds R counts the draws of clients,
    and the pacer versions.

    State: ``known``, device -> U, L, D (s; U and L are 0 until it is heard); ``asked``, how often; ``begun``, when those at
    work were asked (s); ``preferred``, T (s); ``harvest``, the utility of each round; ``reports``, those of the open round.

    Attributes:
        pacer_step: Delta (s); the published code has none.
        pacer: see above.
        window: W, rounds.
        penalty: alpha.
        exploration, decay, least_exploration: of epsilon.
        cutoff: c.
        clip: the quantile beyond which a utility does not count.
        most_times: None: as often as it likes.
        scale: ``plain``: as above. ``unit``: the clipped U are first brought to 0 to 1, as in the published code, so that the
            bonus for long absence has weight beside them.
    """

    kind: Literal["oort"] = "oort"
    pacer: Literal["paper", "published-code"] = "paper"
    pacer_step: Annotated[PositiveSeconds | None, OnlyWith("pacer", values=("paper",))] = None
    window: int = Field(default=20, ge=1)
    penalty: float = Field(default=2.0, ge=0.0, le=100.0)
    exploration: float = Field(default=0.9, ge=0.0, le=1.0)
    decay: float = Field(default=0.98, gt=0.0, le=1.0)
    least_exploration: float = Field(default=0.2, ge=0.0, le=1.0)
    cutoff: float = Field(default=0.95, ge=0.0, le=1.0)
    clip: float = Field(default=0.95, gt=0.0, le=1.0)
    most_times: int | None = Field(default=10, ge=1)
    scale: Literal["plain", "unit"] = "plain"

    @model_validator(mode="after")
    def _has_a_step(self) -> Self:
        if self.pacer == "paper" and self.pacer_step is None:
            raise ValueError("'pacer_step' is missing; allowed is a time, such as '10 s', or pacer = 'published-code'")
        return self

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        state["round"] = ids[0] + 1
        known, asked = state.setdefault("known", {}), state.setdefault("asked", {})
        there = server.clients.sample(server.devices, "select", *ids, among=among)
        tired = [device for device in there if asked.get(device, 0) >= (self.most_times or math.inf)]
        fresh = [device for device in there if device not in set(tired)]
        heard = [device for device in fresh if known.get(device, _NEVER)[1]]
        unheard = [device for device in fresh if not known.get(device, _NEVER)[1]]
        unheard.sort(key=lambda device: known.get(device, _NEVER)[2])
        wanted = round(count * (1 - self.epsilon(state["round"])))
        wanted = min(len(heard), max(wanted, count - len(unheard)))
        chosen = self._best(server, state, wanted, heard, ids)
        chosen += unheard[: count - len(chosen)]
        chosen += tired[: count - len(chosen)]
        asked |= {device: asked.get(device, 0) + 1 for device in chosen}
        state.setdefault("begun", {}).update(dict.fromkeys(chosen, server.now))
        return chosen

    def epsilon(self, number: int) -> float:
        """The share of a round, from 1, that explores."""
        return max(self.exploration * self.decay ** (number - 1), min(self.least_exploration, self.exploration))

    def utilities(self, entries: Sequence[Sequence[float]], number: int, preferred: float) -> Floats:
        """Util [n] of clients with U, L, D (s) of ``entries`` in round ``number`` with T = ``preferred`` (s)."""
        utility, last, took = np.array(entries, dtype=np.float64).T
        utility = np.minimum(utility, np.quantile(utility, self.clip, method="lower"))
        if self.scale == "unit":
            utility = (utility - utility.min()) / max(float(np.ptp(utility)), 1e-4)
        factor = np.where(took > preferred, preferred / np.maximum(took, 1e-9), 1.0) ** self.penalty
        return np.asarray((utility + np.sqrt(0.1 * math.log(number) / last)) * factor)

    def _best(self, server: Server, state: dict[str, Any], wanted: int, heard: list[int], ids: Ids) -> list[int]:
        if not wanted:
            return []
        known, preferred = state["known"], self.preferred(state)
        utility = self.utilities([known[device] for device in heard], state["round"], preferred)
        order = np.argsort(-utility, kind="stable")
        able = order[utility[order] >= self.cutoff * utility[order[wanted - 1]]]
        variates = server.rng("exploit", *ids).standard_exponential(len(able))
        return [heard[place] for place in able[drawn(utility[able], wanted, variates)].tolist()]

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if message.device not in state.get("begun", {}):
            return
        took = server.now - state["begun"].pop(message.device)
        utility, last, before = state["known"].get(message.device, _NEVER)
        if message.outcome == "late":
            state["known"][message.device] = (utility, last, max(before, took))
        elif "training-loss" in message.contents:
            state["known"][message.device] = (utility, last, took)
            state.setdefault("reports", {})[message.device] = (message["trained-on"], message["training-loss"])

    async def learn(self, server: Server, state: dict[str, Any]) -> None:
        reports = state.pop("reports", {})
        losses = [1.0] * len(reports)
        if server.models.learns:
            losses = [float(found[0]) for found in await server.models.numbers([loss for _, loss in reports.values()])]
        harvest, known = 0.0, state.setdefault("known", {})
        for (device, (samples, _)), loss in zip(reports.items(), losses, strict=True):
            utility = samples * loss if math.isfinite(loss) else 0.0
            harvest += utility
            known[device] = (utility, state["round"], known[device][2])
        history = state.setdefault("harvest", [])
        if self.pacer_step is not None:
            state["preferred"] = self.paced(history, harvest, state.get("preferred", self.pacer_step))
        else:
            state["percentile"] = self.percentile(history, harvest, state.get("percentile", _FIRST))

    def preferred(self, state: dict[str, Any]) -> float:
        if self.pacer_step is not None:
            return float(state.setdefault("preferred", self.pacer_step))
        times = sorted(took for _, last, took in state["known"].values() if last)
        share = state.get("percentile", _FIRST) / 100
        return times[min(int(len(times) * share), len(times) - 1)] if times and share < 1 else math.inf

    def percentile(self, history: list[float], harvest: float, before: float) -> float:
        """The percentile of T after a round of so much utility, which is added to the ``history``."""
        history.append(harvest)
        if len(history) < 2 * self.window:
            return before
        last, now = sum(history[: self.window]), sum(history[self.window :])
        del history[: self.window]
        if abs(now - last) <= 0.1 * last:
            return min(100.0, before + _BY)
        return max(_BY, before - _BY) if abs(now - last) >= 5 * last else before

    def paced(self, history: list[float], harvest: float, preferred: float) -> float:
        """T of the paper after a round of so much utility, which is added to the ``history``."""
        history.append(harvest)
        del history[: -2 * self.window]
        poorer = len(history) == 2 * self.window and sum(history[: self.window]) > sum(history[self.window :])
        return preferred + (self.pacer_step or 0.0) if poorer else preferred

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        if result.trained is None:
            return {}
        return {"trained-on": Header(result.samples), "training-loss": Lazy("loss", result.trained)}


class _BySpeed(Selection):
    """Candidates say how long they take to receive a model, to train for a round, and to send a model, as far as they know (s).

    That has 12 bytes (``resources``); the question has none.
    """

    def question(self, models: Sequence[Ref]) -> Contents:
        return {}

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, params: Spec) -> Contents:
        training_s = device.epoch_s * getattr(params, "local_epochs", 1)
        return {"resources": [device.model_s("down"), training_s, device.model_s("up")]}


class FedCS(_BySpeed):
    """As many clients as can be through by a deadline, chosen greedily.

    Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources" (ICC 2019), Protocol 2
    and Algorithm 3. Candidates drawn at random say how long they take (12 bytes; ``resources``). Then the candidate that lets
    the expected round grow least is added, again and again, if that is still within ``time``, up to the number that is wanted.
    As in the paper the model goes to all at once (the slowest download counts), all train side by side, and updates are sent
    one after another. What the world does to a device on the way is in none of the three numbers, so that a round may well be
    longer.

    Attributes:
        time: T_round (s), from the question's answers on.
        candidates: how many are asked; at least as many as are wanted.
        patience: candidates who have not answered by then (s) are not chosen; None: all are waited for.
    """

    kind: Literal["fedcs"] = "fedcs"
    time: PositiveSeconds
    candidates: int = Field(default=20, ge=1)
    patience: PositiveSeconds | None = None

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        return server.clients.sample(max(self.candidates, count), "select", *ids, among=among)

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        return self.greedy(count, {device: tuple(told["resources"]) for device, told in answers.items()})

    def greedy(self, count: int, told: Mapping[int, tuple[float, float, float]]) -> list[int]:
        """At most ``count`` devices that are expected to be through by ``time``, in the order in which they were added.

        ``told``: device -> how long it takes to receive a model, to train, and to send a model (s).
        """
        left, chosen = dict(told), list[int]()
        received = sent = 0.0  # when the last of the chosen has the model, and how long after that the last update is here
        while left and len(chosen) < count:
            after = {device: (max(received, down), max(sent, training) + up) for device, (down, training, up) in left.items()}
            best = min(after, key=lambda device: sum(after[device]))
            del left[best]
            if sum(after[best]) <= self.time:
                received, sent = after[best]
                chosen.append(best)
        return chosen


class FLANP(_BySpeed):
    """The fastest clients, of whom there are twice as many in each stage, up to as many as a round may ask.

    Source: Reisizadeh, Tziotis, Hassani, Mokhtari and Pedarsani, "Straggler-resilient federated learning" (2022), Algorithm 1
    (rules from memory): a stage of n clients is over when the squared norm of the gradient of their loss is at most 2 mu V, V =
    c / (n s) being the statistical accuracy of their n s samples; the next one goes on from its model with 2 n. So the model is
    nearly trained when the slow ones join. Here 2 mu c is ``accuracy``, and the gradient is estimated from the updates: the
    mean, weighted by samples, of (received model - update) / (learning rate x steps), which for a single step without momentum
    is the gradient itself. The paper's solver within a stage is FedGATE; here it is the strategy.

    Each client says once how long it takes (12 bytes; ``resources``). A stage's clients are the n fastest that are there, and
    at most ``clients_per_round`` (all devices, in the paper). In strategies with groups all models together make the gradient.
    Without learning a stage is one round. Each stage is a record, ``stage``.

    State: ``told``, device -> time (s); ``stage``, n; ``round``; ``room``, places that are left for those who are being asked.

    Attributes:
        first: n of the first stage.
        accuracy: 2 mu c: a stage is over when the gradient's squared norm, times the samples of its clients, is at most this.
        patience: who has not said how fast it is by then (s) is asked again in the next round; None: all are waited for.
    """

    kind: Literal["flanp"] = "flanp"
    looks_at_each: ClassVar[str | None] = "the selection 'flanp' makes a gradient of single updates"
    counts_steps: ClassVar[str | None] = "the selection 'flanp' finds gradients from how far steps have led"

    first: int = Field(default=2, ge=1)
    accuracy: float = Field(gt=0.0, le=1e12)
    patience: PositiveSeconds | None = None

    def fewest(self, count: int) -> int:
        return min(self.first, count)

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        state["round"] = ids[0]
        there = server.clients.online() if among is None else [device for device in among if server.clients.idle(device)]
        told, wanted = state.setdefault("told", {}), min(count, state.setdefault("stage", self.first))
        fastest = _fastest(wanted, {device: told[device] for device in there if device in told})
        unknown = [device for device in there if device not in told]
        if unknown:
            state.setdefault("room", []).append(wanted - len(fastest))
        return fastest + unknown

    def asked_first(self, state: dict[str, Any], chosen: list[int]) -> list[int]:
        return [device for device in chosen if device not in state["told"]]

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        state["told"] |= {device: sum(said["resources"]) for device, said in answers.items()}
        return _fastest(state["room"].pop(0), {device: state["told"][device] for device in answers})

    def report(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {"steps": Header(result.steps)}

    async def closed(self, server: Server, state: dict[str, Any], received: Updates, models: ModelAssignment) -> None:
        if not received or "stage" not in state:  # a strategy has chosen by itself (in a sweep)
            return
        stage, total = state["stage"], sum(entry["samples"] for entry in received)
        if server.models.learns and not await self._square(server, state["round"], received, total) * total <= self.accuracy:
            return
        state["stage"] = min(2 * stage, server.devices)
        if state["stage"] > stage:
            server.emit("stage", round=state["round"], clients=state["stage"])

    async def _square(self, server: Server, number: int, received: Updates, total: int) -> float:
        """The squared norm of the gradient; not finite where it is not known."""
        lr = server.setting.lr_in(number)
        trained: dict[Ref, list[dict[str, Any]]] = {}
        for entry in received:
            trained.setdefault(entry["start"], []).append(entry)
        squares = []
        for start, entries in trained.items():
            shares = [entry["samples"] / max(total * lr * entry["contents"]["steps"], 1e-300) for entry in entries]
            models = [start, *(entry["update"] for entry in entries)]
            squares.append(server.models.apply(squared, models, size=1, shares=shares))
        return float(sum(value[0] for value in await server.models.values(squares)))


def _fastest(count: int, times: Mapping[int, float]) -> list[int]:
    """Of equals that of the lowest number."""
    return lowest(sorted(times), count, times.__getitem__)


@pure
def squared(models: list[NDArray[np.float32]], shares: list[float]) -> NDArray[np.floating]:
    """The squared norm of the sum of share x (the first model - another one)."""
    start, *others = (model.astype(np.float64) for model in models)
    total = np.array(shares) @ (start - np.array(others))
    return np.array([total @ total])
