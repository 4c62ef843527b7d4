"""FAVOR: an agent that learns in the run selects the clients (Wang, Kaplan, Niu and Li, 2020)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict

import numpy as np
from pydantic import Field

from fedsim.common.arrays import Floats, Floats32
from fedsim.common.spec import Spec
from fedsim.common.training import Training
from fedsim.common.units import PositiveSeconds
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection, Updates
from fedsim.strategies.state import State
from fedsim.world.steps import TaskStep, Train

if TYPE_CHECKING:
    from torch import Tensor


class AgentSizes(TypedDict):
    """Layer sizes of FAVOR's agent, a perceptron that maps a state to a Q-value for each device.

    The Q-value estimates the reward of selecting the device.

    Attributes:
        inputs: count of input units, the length of a state.
        hidden: count of hidden units.
        action_count: count of output units, one for each device.
    """

    inputs: int
    hidden: int
    action_count: int


@dataclass
class FAVORState(State):
    """State of the selection ``favor``: models of devices, the learning agent, its past actions.

    The agent is a perceptron that values the choice of each device. A device is profiled by one
    training, whose result is the first model that the server knows of it.

    Attributes:
        round: Index of the open round, from 0.
        first: Model from which the first profiled device trained; None before its answer.
        local: Device ID -> last known model of each profiled device.
        axes: Mean and principal axes of the models of the first profiled devices; None before these
            models have arrived, and without learning.
        model: The present model, in strategies with groups the mean of the groups' models.
        situation: s, the present state that the agent observes.
        q_values: Q(s, a) for the selection of each device, by device ID; None before the agent
            exists.
        agent: Q, the agent as one array: its weights, two moments of Adam for each weight, and the
            count of Adam's steps.
        older: Q', the agent as it was in an earlier round.
        replay: Replay memory of actions, (state s, device ID, reward, next state s').
    """

    round: int = 0
    first: Ref | None = None
    local: dict[int, Ref] = field(default_factory=dict)
    axes: Ref | None = None
    model: Ref = field(init=False)
    situation: Ref = field(init=False)
    q_values: list[float] | None = None
    agent: Ref = field(init=False)
    older: Ref = field(init=False)
    replay: list[tuple[Ref, int, float, Ref]] = field(default_factory=list)


class FAVOR(Selection):
    """The clients with the highest Q-values of an agent, which learns by double deep Q-learning.

    Source: Wang, Kaplan, Niu and Li, "Optimizing federated learning on non-IID data with
    reinforcement learning" (INFOCOM 2020), sections III and IV (implemented from a summary of
    them).

    - Profiles: before its first selection each device receives the model (d parameters; content
      ``profile``), trains for an epoch, and sends the result (d parameters; content
      ``local-model``). The server computes the principal axes of the first such models.
    - State s: the coordinates, along these axes, of the present model and of each device's last
      known model.
    - Selection: the agent Q, a perceptron with one hidden layer, computes a Q-value Q(s, a) for the
      choice of each device a. Each client of the next round is the remaining device with the
      highest Q-value, or with probability epsilon a random one. epsilon is multiplied by ``decay``
      after each round until it is ``least_exploration``.
    - Reward: all clients of a round get r = ``base``^(accuracy - ``target``) - 1, with the accuracy
      of the new model in a test at the server (``ServerModels.test``).
    - Learning: after a round the agent makes ``steps`` steps of Adam with learning rate ``lr``,
      each on the squared errors of ``batch`` Q-values, drawn from the last ``memory`` selections of
      a client. The value that Q(s, a) should have is r + ``discount`` Q'(s', b), with the next
      state s' and the device b of the highest Q(s', b). Q' is the agent as it was up to ``refresh``
      rounds ago.

    In the paper the agent is trained in many runs, with one device per round; here it learns during
    the run, in no simulated time. The discount, and how the agent explores and learns, are our
    choice.

    A device that arrives or returns later is profiled in the next selection; until then the initial
    model is used as its model. In strategies that have a model for each group of clients, the
    present model is the mean of the groups' models. In runs without learning, clients are drawn at
    random.

    Attributes:
        target: Omega, the accuracy, 0 to 1, below which rewards are negative.
        base: Xi, the base of the reward.
        discount: gamma, the weight of the next state's value.
        components: number of principal axes, at most the number of devices.
        hidden: units of the agent's hidden layer.
        exploration: epsilon in the first round.
        decay: factor of epsilon from one round to the next.
        least_exploration: the least epsilon.
        memory: number of the last actions, selections of a client, that the agent remembers.
        batch: number of actions in a step of the agent's training.
        steps: number of the agent's training steps after each round.
        lr: learning rate of the agent.
        refresh: rounds after which the older agent is replaced by the present agent.
        patience: time (s) after which the round no longer waits for profiles; a device without a
            profile is profiled again in the next round. None: the round waits for all devices.
    """

    not_by_device: ClassVar[Mapping[str, str]] = {
        "steps": "'favor' profiles a device by an epoch of training",
    }

    kind: Literal["favor"] = "favor"
    why_single_updates: ClassVar[str | None] = "the selection 'favor' looks at single updates"
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
        """Return the probability with which a client is drawn at random in a round.

        Args:
            number: index of the round, from 0.
        """
        least = min(self.least_exploration, self.exploration)
        return max(self.exploration * self.decay**number, least)

    State = FAVORState

    def select(
        self,
        server: Server,
        state: FAVORState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Return the first clients of a round, then the devices that are to be profiled for it.

        A device is profiled if the server knows a model that it has trained. The first clients are
        at most ``count`` profiled devices with high Q-values, some of them drawn at random; they
        join the round. All other available devices are asked for a model. When they have answered,
        ``choose`` selects further clients among them, if ``count`` is not reached.

        Args:
            server: the run's server.
            state: the selection's memory, with models and Q-values.
            count: largest count of clients.
            ids: integers that name the random draws: the index of the round, from 0, and further
                integers if a round selects several times.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            Device IDs.
        """
        state.round = ids[0]
        # in random order, as some clients are drawn at random
        online = server.clients.sample(server.devices, "select", *ids, among=among)
        profiled = [device for device in online if device in state.local]
        first_clients = self._select_best(server, state, count, profiled)
        return first_clients + self.asked_first(state, online)

    def _select_best(
        self, server: Server, state: FAVORState, count: int, candidates: list[int]
    ) -> list[int]:
        """Select clients by their Q-values, and some at random.

        Each client is a random remaining candidate with the present probability epsilon, otherwise
        the remaining candidate with the highest Q-value. Before the agent exists, all clients are
        random.

        Args:
            server: the run's server, which has the random streams.
            state: the selection's memory, with the Q-values.
            count: maximum count of clients.
            candidates: device IDs in random order.

        Returns:
            IDs of the selected devices.
        """
        q_values = state.q_values
        generator = server.rng("explore", state.round, len(candidates))
        explores = (generator.random(count) < self.epsilon(state.round)).tolist()
        remaining = list(candidates)
        cohort = list[int]()
        for is_random in explores[: len(candidates)]:
            device = remaining[0]  # a random one, as the order of candidates is random
            if q_values is not None and not is_random:
                device = max(remaining, key=q_values.__getitem__)
            remaining.remove(device)
            cohort.append(device)
        return cohort

    def asked_first(self, state: FAVORState, chosen: list[int]) -> list[int]:
        return [device for device in chosen if device not in state.local]

    def question(self, models: Sequence[Ref]) -> Contents:
        return {"profile": models[0]}

    def look(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        return (Train(Training(instruction["profile"])),)

    def answer(
        self, device: Device, instruction: Instruction, result: LocalResult, params: Spec
    ) -> Contents:
        start = Header(instruction["profile"])
        return {"local-model": result.update, "profiled-from": start}

    async def choose(
        self, server: Server, state: FAVORState, count: int, answers: Answers
    ) -> list[int]:
        """Store the models of newly profiled devices, and select clients among these devices.

        Called when the devices have answered, or at the end of ``patience``. With the first answers
        the agent and the principal axes of the models are created. The devices with the highest
        Q-values are selected, and some at random.

        Args:
            server: the run's server.
            state: the selection's memory, which is changed.
            count: largest count of clients.
            answers: device ID -> the answer, with the model that the device has trained.

        Returns:
            IDs of the selected devices.
        """
        for device, answer in answers.items():
            if state.first is None:
                state.first = answer["profiled-from"]
            parts = [(answer["local-model"], 1.0)]  # ``first`` replaces a diverged model
            state.local[device] = server.models.mix(parts, otherwise=state.first)
        if answers and server.models.learns:
            if state.axes is None:
                self._create_agent(server, state)
            self._observe(server, state)
            await self._evaluate(server, state)
        return self._select_best(server, state, count, list(answers))

    async def on_round_end(
        self, server: Server, state: FAVORState, received: Updates, models: ModelAssignment
    ) -> None:
        """Store the round's actions with their reward in the replay memory, and train the agent.

        Called after a round. An action is the selection of a client. Nothing is done if no update
        was received, before the agent exists, and in runs without learning.

        Args:
            server: the run's server, which tests the models.
            state: the selection's memory, which is changed.
            received: the updates of the round.
            models: the new models by name, each with the IDs of the devices that it serves (None:
                all).
        """
        if state.axes is None or not received:
            return
        assert state.first is not None
        old_situation = state.situation
        reward = await self._reward(server, state, models)
        for entry in received:
            device = entry["device"]
            old_model = state.local.get(device, state.first)  # kept if the update is not finite
            state.local[device] = server.models.mix([(entry["update"], 1.0)], otherwise=old_model)
        self._observe(server, state)
        for entry in received:
            state.replay.append((old_situation, entry["device"], reward, state.situation))
        del state.replay[: -self.memory]
        self._learn(server, state)
        await self._evaluate(server, state)

    def _sizes(self, server: Server) -> AgentSizes:
        action_count = server.devices
        inputs = min(self.components, server.devices) * (action_count + 1)
        return {"inputs": inputs, "hidden": self.hidden, "action_count": action_count}

    def _create_agent(self, server: Server, state: FAVORState) -> None:
        """Compute the principal axes of the first local models, and create the agent.

        Both are stored in ``state``, with the model from which the devices trained as the present
        model.
        """
        assert state.first is not None
        apply = server.models.apply
        axis_count = min(self.components, server.devices)
        local_models = list(state.local.values())
        axes_size = (axis_count + 1) * server.setting.parameters
        state.axes = apply(principal_axes, local_models, size=axes_size, count=axis_count)
        layers = self._sizes(server)
        size = agent_size(**layers)
        # ``new_agent`` does not use its list of models
        state.agent = apply(new_agent, [state.first], stream=("agent",), size=size, **layers)
        state.older = state.agent
        state.model = state.first

    def _observe(self, server: Server, state: FAVORState) -> None:
        """Compute the state s that the agent observes, and store it in ``state.situation``."""
        assert state.axes is not None
        assert state.first is not None
        models = [state.axes, state.model]
        models += [state.local.get(device, state.first) for device in range(server.devices)]
        size = self._sizes(server)["inputs"]
        state.situation = server.models.apply(along, models, size=size)

    async def _evaluate(self, server: Server, state: FAVORState) -> None:
        """Store in ``state.q_values`` the Q-value of each device's choice in the present state."""
        action_count = server.devices
        values = server.models.apply(
            state_values,
            [state.agent, state.situation],
            size=action_count,
            hidden=self.hidden,
            action_count=action_count,
        )
        state.q_values = (await server.models.value(values)).tolist()

    async def _reward(self, server: Server, state: FAVORState, models: ModelAssignment) -> float:
        """Return the reward of the round that has ended, and store the present model.

        The reward is base^(a - target) - 1. a is the mean accuracy of the models, each tested on
        the devices that it serves. The present model, which is stored in ``state.model``, is the
        mean of the models. Accuracies and models are weighted by the counts of devices that they
        serve.

        Args:
            server: the run's server, which tests the models.
            state: the selection's memory; its entry ``model`` is replaced.
            models: the strategy's models by name, each with the IDs of the devices that it serves
                (None: all).
        """
        assignments = list[tuple[Ref, Sequence[int] | None, int]]()  # model, devices, their count
        for model, devices in models.values():
            count = server.devices if devices is None else len(devices)
            if count:
                assignments.append((model, devices, count))
        total = sum(count for _, _, count in assignments)
        mean_accuracy = 0.0
        parts = []
        for model, devices, count in assignments:
            accuracy = await server.models.test(model, devices)
            mean_accuracy += (accuracy or 0.0) * count / total
            parts.append((model, count / total))
        state.model = server.models.mix(parts, otherwise=state.model)
        return float(self.base ** (mean_accuracy - self.target) - 1.0)

    def _learn(self, server: Server, state: FAVORState) -> None:
        """Train the agent after a round, by steps on batches drawn from its memory of actions.

        ``state.agent`` is replaced by the trained agent. In every ``refresh``-th round the older
        agent, from which the targets of training are computed, is first replaced by the present
        one.
        """
        round_number = state.round
        if round_number % self.refresh == 0:
            state.older = state.agent
        size = agent_size(**self._sizes(server))
        generator = server.rng("replay", round_number)
        batches = generator.integers(len(state.replay), size=(self.steps, self.batch))
        for indices in batches.tolist():  # one step of Adam for each batch
            actions = [state.replay[index] for index in indices]
            # an action: the state before it, the selected device, the reward, and the next state
            states, devices, rewards, next_states = zip(*actions, strict=True)
            state.agent = server.models.apply(
                trained_agent,
                [state.agent, state.older, *states, *next_states],
                discount=self.discount,
                lr=self.lr,
                size=size,
                hidden=self.hidden,
                action_count=server.devices,
                chosen=list(devices),
                rewards=list(rewards),
            )


# The agent is one array. It has the weights of a perceptron with the layers inputs, hidden and
# actions, Adam's first and second moments of the weights, and the count of Adam's steps.


def weights(inputs: int, hidden: int, action_count: int) -> int:
    """Return how many weights FAVOR's agent has, a perceptron with one hidden layer and biases.

    Args:
        inputs: count of input units.
        hidden: count of hidden units.
        action_count: count of output units, one for each action.
    """
    return hidden * (inputs + 1) + action_count * (hidden + 1)


def agent_size(inputs: int, hidden: int, action_count: int) -> int:
    """Return the length of the array that stores FAVOR's agent and its optimiser.

    The array has the perceptron's weights, Adam's first and second moments of each weight, and the
    count of Adam's steps.

    Args:
        inputs: count of input units.
        hidden: count of hidden units.
        action_count: count of output units, one for each action.
    """
    return 3 * weights(inputs, hidden, action_count) + 1


@pure
def new_agent(
    models: list[Floats32], inputs: int, hidden: int, action_count: int, rng: np.random.Generator
) -> Floats:
    """Draw the weights of a new agent of FAVOR, uniform within 1 / sqrt(inputs of the layer).

    Args:
        models: not used; ``ServerModels.apply`` gives every function a list of models.
        inputs: length of a state, the agent's input.
        hidden: count of units in the hidden layer.
        action_count: count of actions.
        rng: source of the weights.

    Returns:
        Weights of the agent, followed by zeros for Adam's two moments of each weight and for the
        count of Adam's steps, float64 [``agent_size(...)``].
    """
    hidden_layer = rng.uniform(-1, 1, hidden * (inputs + 1)) / math.sqrt(inputs)
    output_layer = rng.uniform(-1, 1, action_count * (hidden + 1)) / math.sqrt(hidden)
    moments_and_steps = np.zeros(2 * weights(inputs, hidden, action_count) + 1)
    return np.concatenate([hidden_layer, output_layer, moments_and_steps])


def q_values(parameters: "Tensor", states: "Tensor", hidden: int, action_count: int) -> "Tensor":
    """Compute the Q-values of all actions in each state, by FAVOR's agent.

    Args:
        parameters: the agent's parameters, flat: weights of the hidden layer, biases of the hidden
            layer, weights of the output layer, biases of the output layer.
        states: the states, [n, inputs].
        hidden: count of units in the hidden layer.
        action_count: count of actions.

    Returns:
        Q-values, [n, action_count].
    """
    import torch

    inputs = states.shape[1]
    sizes = [hidden * inputs, hidden, action_count * hidden, action_count]
    hidden_weights, hidden_bias, output_weights, output_bias = torch.split(parameters, sizes)
    units = torch.relu(torch.addmm(hidden_bias, states, hidden_weights.view(hidden, inputs).T))
    return torch.addmm(output_bias, units, output_weights.view(action_count, hidden).T)


def _tensors(arrays: list[Floats32]) -> "list[Tensor]":
    import torch

    from fedsim.learning.solvers.base import use_one_thread

    use_one_thread()
    return [torch.tensor(array) for array in arrays]


@pure
def state_values(models: list[Floats32], hidden: int, action_count: int) -> Floats32:
    """Compute the Q-values of all actions in one state, by FAVOR's agent.

    Args:
        models: two arrays: the agent as ``new_agent`` returns it (weights, Adam's moments, steps),
            and the state [inputs].
        hidden: count of units in the agent's hidden layer.
        action_count: count of actions.

    Returns:
        Q-values, float32 [action_count].
    """
    agent, state = _tensors(models)
    parameters = agent[: weights(len(state), hidden, action_count)]
    values: Floats32 = q_values(parameters, state[None], hidden, action_count)[0].numpy()
    return values


@pure
def trained_agent(
    models: list[Floats32],
    hidden: int,
    action_count: int,
    discount: float,
    lr: float,
    chosen: list[int],
    rewards: list[float],
) -> Floats32:
    """Train FAVOR's agent by one step of Adam on the Q-values of chosen actions.

    The loss is the mean squared error of these values. The target of a value is the reward plus
    ``discount`` times a value in the next state. This is the value of the action with the agent's
    highest Q-value there, as computed by the older agent, the agent of an earlier round (target
    network). Source: double Q-learning (van Hasselt et al., 2016), as in FAVOR.

    Args:
        models: arrays. First the agent and the older agent, each as ``new_agent`` lays it out
            (weights, Adam's moments, count of steps). Then the state before each chosen action, and
            the state after each chosen action, [inputs] each.
        hidden: count of units in the hidden layer.
        action_count: count of possible actions.
        discount: gamma, the weight of the next state's value.
        lr: learning rate of Adam.
        chosen: index of each chosen action.
        rewards: the reward of each chosen action.

    Returns:
        The array of the trained agent, laid out as the agent's array in ``models``.
    """
    import torch

    agent, older_agent = _tensors(models[:2])
    count = len(chosen)
    states, next_states = torch.split(torch.tensor(np.array(models[2:])), count)  # [count, inputs]
    parameters, *_ = _unpack(agent)
    older_parameters, *_ = _unpack(older_agent)
    parameters.requires_grad_()
    rows = torch.arange(count)  # ``[rows, actions]`` is the Q-value of one action in each state
    with torch.no_grad():
        preferred = q_values(parameters, next_states, hidden, action_count).argmax(1)
        next_values = q_values(older_parameters, next_states, hidden, action_count)[rows, preferred]
        targets = torch.tensor(rewards) + discount * next_values
    values = q_values(parameters, states, hidden, action_count)[rows, torch.tensor(chosen)]
    error = values - targets
    (gradient,) = torch.autograd.grad(error.square().mean(), parameters)
    trained: Floats32 = _adam_step(agent, gradient, lr).numpy()
    return trained


def _adam_step(agent: "Tensor", gradient: "Tensor", lr: float) -> "Tensor":
    """Return the array of FAVOR's agent after a step of Adam.

    Args:
        agent: the array, as ``new_agent`` lays it out.
        gradient: gradient of the loss by the agent's weights, flat.
        lr: learning rate.
    """
    import torch

    # the usual constants: beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-8
    parameters, first_moment, second_moment, steps = _unpack(agent)
    first_moment = 0.9 * first_moment + 0.1 * gradient
    second_moment = 0.999 * second_moment + 0.001 * gradient.square()
    steps += 1
    scale = (second_moment / (1 - 0.999**steps)).sqrt() + 1e-8
    step = lr * (first_moment / (1 - 0.9**steps)) / scale
    return torch.cat([parameters - step, first_moment, second_moment, torch.tensor([steps])])


def _unpack(agent: "Tensor") -> "tuple[Tensor, Tensor, Tensor, float]":
    """Split the array of FAVOR's agent.

    Args:
        agent: the array, as ``new_agent`` lays it out.

    Returns:
        Views of the weights, and of Adam's first and second moment of each weight; and the count of
        Adam's steps.
    """
    import torch

    weight_count = (len(agent) - 1) // 3  # three arrays of this length, and the count of steps
    parameters, first_moment, second_moment = torch.split(agent[:-1], weight_count)
    return parameters, first_moment, second_moment, float(agent[-1])


@pure
def principal_axes(models: list[Floats32], count: int) -> Floats:
    """Compute the mean of models and their leading principal axes.

    The entry of largest magnitude of each axis is positive. There are at most (count of models) - 1
    axes; if ``count`` is larger, the other axes are 0.

    Args:
        models: the models, float32 [d] each.
        count: count of axes.

    Returns:
        The mean, then each axis, float64 [(count + 1) d].
    """
    rows = np.array(models, dtype=np.float64)
    mean = rows.mean(axis=0)
    rank = min(count, len(rows) - 1)
    _, _, right_vectors = np.linalg.svd(rows - mean, full_matrices=False)
    axes = right_vectors[:rank]  # [rank, d]; centred rows span at most (their count) - 1 axes
    # an SVD leaves the sign of each axis open
    largest_columns = np.abs(axes).argmax(axis=1)
    axes *= np.sign(axes[np.arange(rank), largest_columns])[:, None]
    zero_axes = np.zeros((count - len(axes)) * len(mean))
    return np.concatenate([mean, axes.ravel(), zero_axes])


@pure
def along(models: list[Floats32]) -> Floats:
    """Compute the coordinates of models along principal axes, which FAVOR's agent observes.

    Args:
        models: first the array that ``principal_axes`` returns (the mean and the axes, concatenated
            to length (axes + 1) d); then the models, [d] each.

    Returns:
        Coordinates, model by model, float64 [models x axes].
    """
    mean, *axes = models[0].reshape(-1, len(models[1])).astype(np.float64)
    coordinates = (np.array(models[1:]) - mean) @ np.array(axes).T
    return coordinates.ravel()
