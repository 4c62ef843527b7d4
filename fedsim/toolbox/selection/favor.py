"""FAVOR (Wang, Kaplan, Niu and Li, "Optimizing federated learning on non-IID data with reinforcement learning", 2020)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection, Updates
from fedsim.training import Training
from fedsim.world.task import Computation, Train

if TYPE_CHECKING:
    from torch import Tensor

Numbers = NDArray[np.float32]


class FAVOR(Selection):
    """The clients of which an agent expects most; the agent learns by double deep Q-learning.

    Sections III and IV (by a summary of them). At first each device receives the model (d parameters; ``profile``), trains for
    an epoch, and sends the result (d parameters; ``local-model``). The leading principal axes of these models are kept. The
    state of a round is the model, and the last known one of each device, along these axes. A round's reward is
    ``base``^(accuracy - ``target``) - 1, by the server's test (``ServerModels.test``). The agent, a perceptron with one hidden
    layer, values the choice of each device in a state. The next round asks those of the highest values, but each place in the
    cohort goes to a device at random with probability epsilon, which falls by ``decay`` a round to ``least_exploration``.

    Each client of a round is an action. With Q the agent, and Q' the agent as it was up to ``refresh`` rounds ago, the value of
    an action is r + ``discount`` Q'(s', argmax_a Q(s', a)). After a round the agent makes ``steps`` steps of Adam at ``lr`` on
    the squared errors of ``batch`` actions drawn from the last ``memory``. In the paper it is trained in many runs, by one
    device a round; here it learns in the run, in no simulated time. The discount, and how it explores and learns, are our
    choice. A device that was away, or is a newcomer, is profiled when it is there; until then the first model stands for its
    own. In strategies with groups the model is the mean of the groups'. Without learning clients are random.

    State: ``first``, the first model; ``local``, device -> model; ``axes``, their mean and the axes; ``model``, the present
    one; ``state``, s; ``values``, Q(s, a); ``agent`` and ``older``, Q and Q'; ``replay``, lists of s, device, reward and s'.

    Attributes:
        target: Omega, the accuracy that is aimed at.
        base: Xi, of the reward.
        discount: gamma, what the next state's value counts.
        components: principal axes; at most one a device.
        hidden: units of the agent's hidden layer.
        exploration, decay, least_exploration: epsilon in the first round, its factor from round to round, and the least.
        memory: actions that are remembered.
        batch: actions in a step of the agent.
        steps: of the agent after each round.
        lr: learning rate of these steps.
        refresh: rounds after which the older agent becomes as the agent is.
        patience: who is not profiled by then (s) is profiled again in the next round; None: all are waited for.
    """

    kind: Literal["favor"] = "favor"
    looks_at_each: ClassVar[str | None] = "the selection 'favor' looks at single updates"
    needs_accuracy: ClassVar[bool] = True

    target: float = Field(gt=0.0, le=1.0)
    base: float = Field(default=64.0, gt=1.0, le=1e6)
    discount: float = Field(default=0.9, ge=0.0, lt=1.0)
    components: int = Field(default=100, ge=1, le=10_000)
    hidden: int = Field(default=512, ge=1, le=100_000)
    exploration: float = Field(default=0.9, ge=0.0, le=1.0)
    decay: float = Field(default=0.95, gt=0.0, le=1.0)
    least_exploration: float = Field(default=0.05, ge=0.0, le=1.0)
    memory: int = Field(default=1000, ge=1, le=1_000_000)
    batch: int = Field(default=32, ge=1, le=10_000)
    steps: int = Field(default=8, ge=1, le=10_000)
    lr: float = Field(default=1e-3, gt=0.0, le=1.0)
    refresh: int = Field(default=5, ge=1, le=100_000)
    patience: PositiveSeconds | None = None

    @property
    def needs_model(self) -> bool:
        return True

    def epsilon(self, number: int) -> float:
        return max(self.exploration * self.decay**number, min(self.least_exploration, self.exploration))

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        state["round"] = ids[0]
        local = state.setdefault("local", {})
        there = server.clients.sample(server.devices, "select", *ids, among=among)
        chosen = self._chosen(server, state, count, [device for device in there if device in local])
        return chosen + self.asked_first(state, there)

    def _chosen(self, server: Server, state: dict[str, Any], count: int, there: list[int]) -> list[int]:
        """So many of those ``there``, which are in an order drawn at random."""
        values, number, chosen = state.get("values"), state["round"], list[int]()
        explored = server.rng("explore", number, len(there)).random(count) < self.epsilon(number)
        for explores in explored[: len(there)].tolist():
            left = [device for device in there if device not in chosen]
            chosen.append(left[0] if explores or values is None else max(left, key=lambda device: values[device]))
        return chosen

    def asked_first(self, state: dict[str, Any], chosen: list[int]) -> list[int]:
        return [device for device in chosen if device not in state["local"]]

    def question(self, models: Sequence[Ref]) -> Contents:
        return {"profile": models[0]}

    def look(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        return (Train(Training(instruction["profile"])),)

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, params: Spec) -> Contents:
        return {"local-model": result.update, "profiled-from": Header(instruction["profile"])}

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        local = state["local"]
        for device, answer in answers.items():
            state.setdefault("first", answer["profiled-from"])
            local[device] = server.models.mix([(answer["local-model"], 1.0)], otherwise=state["first"])
        if answers and server.models.learns:
            if "axes" not in state:
                self._begin(server, state)
            self._look(server, state)
            await self._ask_agent(server, state)
        return self._chosen(server, state, count, list(answers))

    def _sizes(self, server: Server) -> dict[str, Any]:
        components, actions = min(self.components, server.devices), server.devices
        return {"inputs": components * (actions + 1), "hidden": self.hidden, "actions": actions}

    def _begin(self, server: Server, state: dict[str, Any]) -> None:
        """Find the axes of the first models, and make an agent."""
        count, sizes, apply = min(self.components, server.devices), self._sizes(server), server.models.apply
        size = (count + 1) * server.setting.parameters
        state["axes"] = apply(principal_axes, list(state["local"].values()), size=size, count=count)
        agent = apply(new_agent, [state["first"]], stream=("agent",), size=3 * weights(**sizes) + 1, **sizes)
        state |= {"agent": agent, "older": agent, "replay": [], "model": state["first"]}

    def _look(self, server: Server, state: dict[str, Any]) -> None:
        models = [state["model"], *(state["local"].get(device, state["first"]) for device in range(server.devices))]
        state["state"] = server.models.apply(along, [state["axes"], *models], size=self._sizes(server)["inputs"])

    async def _ask_agent(self, server: Server, state: dict[str, Any]) -> None:
        seen, actions = [state["agent"], state["state"]], server.devices
        found = await server.models.value(server.models.apply(told, seen, size=actions, hidden=self.hidden, actions=actions))
        state["values"] = found.tolist()

    async def closed(self, server: Server, state: dict[str, Any], received: Updates, models: ModelAssignment) -> None:
        if "axes" not in state or not received:
            return
        before, local, reward = state["state"], state["local"], await self._reward(server, state, models)
        for entry in received:
            device = entry["device"]
            local[device] = server.models.mix([(entry["update"], 1.0)], otherwise=local.get(device, state["first"]))
        self._look(server, state)
        state["replay"] += [[before, entry["device"], reward, state["state"]] for entry in received]
        del state["replay"][: -self.memory]
        self._learn(server, state)
        await self._ask_agent(server, state)

    async def _reward(self, server: Server, state: dict[str, Any], models: ModelAssignment) -> float:
        """By the accuracy of the models on the devices that they are for; their mean becomes the present one."""
        sizes = [server.devices if devices is None else len(devices) for _, devices in models.values()]
        served = [(*entry, size) for entry, size in zip(models.values(), sizes, strict=True) if size]
        total = sum(size for *_, size in served)
        accuracy = 0.0
        for model, devices, size in served:
            accuracy += (await server.models.test(model, devices) or 0.0) * size / total
        state["model"] = server.models.mix([(model, size / total) for model, _, size in served], otherwise=state["model"])
        return float(self.base ** (accuracy - self.target) - 1.0)

    def _learn(self, server: Server, state: dict[str, Any]) -> None:
        replay, number = state["replay"], state["round"]
        if number % self.refresh == 0:
            state["older"] = state["agent"]
        drawn = server.rng("replay", number).integers(len(replay), size=(self.steps, self.batch))
        how: dict[str, Any] = {"hidden": self.hidden, "actions": server.devices, "discount": self.discount, "lr": self.lr}
        for places in drawn.tolist():
            befores, actions, rewards, afters = zip(*(replay[place] for place in places), strict=True)
            how |= {"size": 3 * weights(**self._sizes(server)) + 1, "chosen": list(actions), "rewards": list(rewards)}
            state["agent"] = server.models.apply(learnt, [state["agent"], state["older"], *befores, *afters], **how)


# The agent: [weights, Adam's first and second moments, steps made], of a perceptron inputs - hidden - actions.


def weights(inputs: int, hidden: int, actions: int) -> int:
    """The number of the agent's weights."""
    return hidden * (inputs + 1) + actions * (hidden + 1)


@pure
def new_agent(models: list[Numbers], inputs: int, hidden: int, actions: int, rng: np.random.Generator) -> NDArray[np.floating]:
    """An agent whose weights are uniform within 1 / sqrt(inputs of the layer); ``models`` are not looked at."""
    layers = [rng.uniform(-1, 1, size * (fans + 1)) / math.sqrt(fans) for size, fans in ((hidden, inputs), (actions, hidden))]
    own = np.concatenate(layers)
    return np.concatenate([own, np.zeros(2 * len(own) + 1)])


def q_values(own: "Tensor", states: "Tensor", hidden: int, actions: int) -> "Tensor":
    """Q-values, by an agent of these weights, of states [n, inputs]: [n, actions]."""
    import torch

    inputs = states.shape[1]
    first, bias, second, last = torch.split(own, [hidden * inputs, hidden, actions * hidden, actions])
    units = torch.relu(torch.addmm(bias, states, first.view(hidden, inputs).T))
    return torch.addmm(last, units, second.view(actions, hidden).T)


def _tensors(models: list[Numbers]) -> "list[Tensor]":
    import torch

    from fedsim.learning.solvers.base import one_thread

    one_thread()
    return [torch.tensor(model) for model in models]


@pure
def told(models: list[Numbers], hidden: int, actions: int) -> NDArray[np.floating]:
    """Q-values [actions] of one state; ``models``: the agent and the state."""
    agent, state = _tensors(models)
    return q_values(agent[: weights(len(state), hidden, actions)], state[None], hidden, actions)[0].numpy()


@pure
def learnt(
    models: list[Numbers], hidden: int, actions: int, discount: float, lr: float, chosen: list[int], rewards: list[float]
) -> NDArray[np.floating]:
    """An agent after a step of Adam on the mean squared error of some actions.

    ``models``: the agent, the older one, then the states before each action and the states after each.
    """
    import torch

    agent, older = _tensors(models[:2])
    befores, afters = torch.split(torch.tensor(np.array(models[2:])), len(chosen))
    size, at, made = (len(agent) - 1) // 3, torch.arange(len(chosen)), float(agent[-1]) + 1
    own, first, second = torch.split(agent[:-1], size)
    own.requires_grad_()
    with torch.no_grad():
        best = q_values(own, afters, hidden, actions).argmax(1)
        wanted = torch.tensor(rewards) + discount * q_values(older[:size], afters, hidden, actions)[at, best]
    error = q_values(own, befores, hidden, actions)[at, torch.tensor(chosen)] - wanted
    (gradient,) = torch.autograd.grad(error.square().mean(), own)
    first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient.square()
    step = lr * (first / (1 - 0.9**made)) / ((second / (1 - 0.999**made)).sqrt() + 1e-8)
    return torch.cat([own.detach() - step, first, second, torch.tensor([made])]).numpy()


@pure
def principal_axes(models: list[Numbers], count: int) -> NDArray[np.floating]:
    """The mean of some models, and the ``count`` axes along which they differ most, [(count + 1) d]; 0 for fewer."""
    rows = np.array(models, dtype=np.float64)
    mean = rows.mean(axis=0)
    axes = np.linalg.svd(rows - mean, full_matrices=False)[2][: min(count, len(rows) - 1)]
    # The largest number of each axis is positive.
    axes *= np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    none = np.zeros((count - len(axes)) * len(mean))
    return np.concatenate([mean, axes.ravel(), none])


@pure
def along(models: list[Numbers]) -> NDArray[np.floating]:
    """The place of each model along each axis; the first of ``models`` is what ``principal_axes`` gave."""
    mean, *axes = models[0].reshape(-1, len(models[1])).astype(np.float64)
    return ((np.array(models[1:]) - mean) @ np.array(axes).T).ravel()
