"""Averaging by all-reduces, without a server: local SGD, DiLoCo, and streaming DiLoCo."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.spec import OnlyWith
from fedsim.common.training import LocalSteps, Places, Training
from fedsim.federation import Contents, Device, Header, Instruction, Opaque, Partial, Peer, RunInfo
from fedsim.learning.refs import Ref
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.peers.base import PeerClient, PeerHalf, PeerParams, Peers
from fedsim.toolbox.peers.collectives import plan_all_reduce
from fedsim.world.population_spec import PopulationSpec


class DiLoCoParams(PeerParams):
    """Keys of ``[strategy]`` for DiLoCo: local steps, all-reduce, outer optimiser, overlap.

    The keys of all strategies without a server are allowed too.

    Attributes:
        start: always ``same``: all devices begin with the same initial model.
        deadline: always None: an all-reduce waits for every device.
        collective: message pattern of the all-reduce among the n devices. ``ring``: parts of 1/n of
            the vector pass from device to device. ``tree``: sums pass up a binary tree, and the
            result passes down. ``butterfly``: each device sums 1/n of the vector for all devices.
            (Averaging through a server is the strategy ``fedavg``.)
        local_steps: SGD steps between two synchronisations; None: ``local_epochs`` epochs.
        outer_lr: the outer learning rate.
        outer_momentum: factor of the outer Nesterov momentum; 0: no momentum.
        fragments: number of equal parts into which the model is divided. Each synchronisation
            averages one of them, in turn.
        overlap: whether devices train during an all-reduce, and when they mix its result into their
            model. ``false``: devices wait for the end of the all-reduce. ``true``: devices train,
            and mix in the result at the next synchronisation. A number of SGD steps, at most
            ``local_steps``: devices train, and mix in the result after this number of steps; if
            the all-reduce has not ended then, they wait for it.
        mixing: weight of a device's own values in their weighted mean with the all-reduce's result,
            if the device has trained during the all-reduce.
    """

    kind: Literal["diloco"] = "diloco"
    start: Literal["same"] = "same"
    deadline: None = None
    collective: Literal["ring", "tree", "butterfly"] = "ring"
    local_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    outer_lr: float = Field(default=0.7, gt=0.0, le=1e6)
    outer_momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    fragments: int = Field(default=1, ge=1, le=10_000)
    overlap: bool | Annotated[int, Field(ge=1, le=1_000_000)] = False
    mixing: Annotated[float, Field(ge=0.0, lt=1.0), OnlyWith("overlap")] = 0.5

    @property
    def why_not(self) -> Reasons:
        if self.local_steps is None:
            return super().why_not
        reason = "'local_steps' says how long devices train"
        return Reasons(by_device=dict.fromkeys(("epochs", "steps"), reason))

    @property
    def expected_steps(self) -> float | None:
        return self.local_steps

    @property
    def early_steps(self) -> int | None:
        """Count of SGD steps after which a device uses the result of the last all-reduce.

        It is the key ``overlap`` if this is a number that differs from ``local_steps``. Otherwise
        it is None: with ``overlap = false`` the result is used at the end of the all-reduce, with
        ``true``, or with a number equal to ``local_steps``, at the next synchronisation.
        """
        if isinstance(self.overlap, bool) or self.overlap == self.local_steps:
            return None
        return self.overlap

    def check(self, devices: int) -> None:
        """Check that the keys fit each other, and that there are two devices or more.

        Args:
            devices: count of devices.

        Raises:
            ScenarioError: ``overlap`` is a number of steps, and ``local_steps`` is missing or
                smaller; there are fewer than two devices; or ``local_steps`` and ``local_epochs``
                are both given.
        """
        early = self.early_steps
        if early is not None and (self.local_steps is None or early > self.local_steps):
            steps = "missing" if self.local_steps is None else self.local_steps
            raise ScenarioError(
                f"strategy.overlap is {early} SGD steps, and strategy.local_steps is {steps}; "
                "allowed are at most 'local_steps' steps, or true"
            )
        if devices < 2:
            raise ScenarioError(
                f"population.devices is {devices}; {self.kind!r} averages over 2 or more"
            )
        if self.local_steps is not None and self.local_epochs != 1:
            raise ScenarioError(
                "strategy.local_steps and strategy.local_epochs both say how long a device "
                "trains; give one"
            )

    def check_population(self, population: PopulationSpec) -> None:
        if population.comes_and_goes:
            raise ScenarioError(
                f"strategy.kind is {self.kind!r}, whose all-reduces wait for every device, but "
                "devices of this population come "
                "and go; allowed is population.availability 'always', without arrivals and "
                "departures"
            )


class _DiLoCoClient(PeerClient):
    """Client of DiLoCo, which trains a device's model for a number of SGD steps.

    The number is in the instruction, or else is the key ``local_steps``. Without both, the client
    trains for ``local_epochs`` passes over its data.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        steps = instruction.contents.get("steps", self.params.local_steps)  # type: ignore[attr-defined]
        if steps:
            return Training(instruction["model"], LocalSteps(steps))
        return super().training(device, instruction)


class DiLoCoHalf(PeerHalf[DiLoCoParams]):
    """DiLoCo's code on devices: train, average the changes of all devices, make an outer step.

    The course of a round: the device trains, and begins an all-reduce with the other devices, which
    averages the changes of one fragment (a range of the model's weights). When it has the result, it
    makes the outer step. Without ``overlap`` only then it begins the next round. With ``overlap``
    it trains meanwhile, and mixes the result into its model after the next round's training, or
    after the first ``overlap`` steps of this training if the key is a number.

    A device takes part in one all-reduce at a time. A message costs the bytes of a partial sum. Its
    header, which costs no bytes, has the changes of which this sum consists, so that all devices
    add the changes up in the same order and get the same result to the bit.

    Entries of a device's state:

    - ``outer``: the model after the last outer step; ``velocity``: the outer momentum.
    - ``trained``: whether a training has ended after which the device has not gone on yet, as it
      waits for the end of an all-reduce.
    - ``early``: whether the present training has only the first ``overlap`` steps of a round. After
      these steps the result of the last all-reduce is mixed into the model.
    - ``fresh``: whether the result of the last all-reduce must still be mixed into the model.
    - ``reducing``: the index of the open all-reduce; None if there is none.
    - ``step``: the index of the device's next step in the open all-reduce.
    - ``known``: device ID -> change, for all changes that the device has received in the open
      all-reduce, and its own.
    - ``bytes``: the size of the averaged fragment, as encoded.
    - ``inbox``: index of an all-reduce -> sender ID -> the changes in each message that the device
      has not used yet.
    """

    def __init__(self, params: DiLoCoParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._collective = plan_all_reduce(params.collective, setting.devices)

    def why_not_more(self, planned: int, finished: int) -> str | None:
        last = planned - 1 if self.params.overlap else planned
        if finished < last:
            return None
        return "a device had begun the last planned all-reduce, after which it does not train"

    def on_start(self, device: Peer) -> None:
        """Set the device's state for all-reduces and outer steps, and start the first training."""
        state = device.state
        state |= {
            "reducing": None,  # index of the open all-reduce
            "step": 0,  # index of the device's next step in the open all-reduce
            "known": {},  # device ID -> change, for the received changes and the device's own one
            "bytes": 0.0,  # size of the averaged fragment
            "inbox": {},  # messages that the device has not used yet
            "outer": state["model"],  # the model after the last outer step
            "velocity": device.zero(),  # the outer momentum
            "trained": False,  # whether the device has trained, and waits for an all-reduce
            "early": False,  # whether the training has only the first steps of a round
            "fresh": False,  # whether the last result must still be mixed into the model
        }
        self._train(device, steps=None)

    def on_return(self, device: Peer) -> None:
        raise SimulationError(
            f"device {device.number} was switched off, but the all-reduces of "
            f"{self.params.kind!r} wait for every device: let "
            "no process of the world switch one off"
        )

    def on_lost(self, device: Peer, other: int) -> None:
        self.on_return(device)

    def _train(self, device: Peer, steps: int | None) -> None:
        """Start the training of a device's round; do nothing after the last planned round.

        Args:
            device: the device.
            steps: count of SGD steps; None for the usual ``local_steps`` or ``local_epochs``.
        """
        planned = self.setting.planned_rounds
        if planned is not None and device.state["round"] >= planned:
            return
        if steps is None:
            self.train(device, device.state["model"])
        else:
            device.train(device.state["model"], device.state["round"], steps)

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        state = device.state
        state["trained"] = True
        if update is not None:
            # the update itself, or the untrained model if the update is not finite
            state["model"] = device.mix([(update, 1.0)], otherwise=state["model"])
        if state["reducing"] is None:
            self._go_on(device)

    def _go_on(self, device: Peer) -> None:
        """Take the next step of a device that has finished a training and has no open all-reduce.

        If the training had only the first steps of a round (``early``), mix the result of the last
        all-reduce into the model, and train the remaining steps. Otherwise begin the next
        all-reduce.
        """
        state = device.state
        if not state["early"]:
            self._synchronise(device)
            return
        state["trained"] = False
        state["early"] = False
        self._mix_last_result(device)
        local_steps = self.params.local_steps
        early_steps = self.params.early_steps
        assert local_steps is not None  # with ``early``, both keys are given
        assert early_steps is not None
        self._train(device, local_steps - early_steps)

    def _synchronise(self, device: Peer) -> None:
        """Begin the next all-reduce of a device, with its change since the last outer step.

        With ``overlap`` also begin the device's next round, in which it trains meanwhile.
        """
        state = device.state
        number = state["round"]
        state["trained"] = False
        if state["fresh"]:  # the last result is not yet in the model
            self._mix_last_result(device)
        zero = device.zero()
        # ``outer`` is the model after the last outer step
        change = device.mix([(state["model"], 1.0), (state["outer"], -1.0)], otherwise=zero)
        ranges = self._fragment_ranges(number)
        # with several fragments: the change in this fragment, and 0 elsewhere
        part = Partial(change, device.zero(), ranges) if ranges else change
        encoded, size = device.encode(part)  # the codec may shorten the part
        state |= {"reducing": number, "step": 0, "known": {device.number: encoded}, "bytes": size}
        self._reduce(device)  # messages of faster devices may have arrived already
        if self._trains_during(number):
            state["early"] = self.params.early_steps is not None
            self._begin_round(device, self.params.early_steps)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        senders = device.state["inbox"].setdefault(contents["number"], {})
        senders.setdefault(sender, []).append(contents["known"])
        self._reduce(device)

    def _reduce(self, device: Peer) -> None:
        """Carry out the steps of a device's open all-reduce for which all messages have arrived.

        In each step the device adds the received changes, and sends its messages. After the last
        step the all-reduce has ended.
        """
        state = device.state
        number = state["reducing"]
        steps = self._collective.steps_by_rank[device.number]
        if number is None:
            return
        # sender ID -> its messages, each with device ID -> change, in order of arrival
        received = state["inbox"].get(number, {})
        while state["step"] < len(steps):
            step = steps[state["step"]]
            has_messages = all(received.get(sender) for sender in step.receive)
            if not has_messages:
                return  # the next call of ``on_message`` continues
            for sender in step.receive:
                state["known"] |= received[sender].pop(0)  # changes of the sender's oldest message
            state["step"] += 1
            if step.send:
                self._send_known(device, number, step.send)
        self._end_reduce(device, number)

    def _send_known(self, device: Peer, number: int, receivers: Sequence[int]) -> None:
        """Send the changes that a device knows in an all-reduce, for the bytes of a partial sum.

        Args:
            device: the sender.
            number: index of the all-reduce.
            receivers: IDs of the receivers.
        """
        state = device.state
        contents = {
            "part": Opaque(None, state["bytes"] * self._collective.message_share),
            "known": Header(dict(state["known"])),
            "number": Header(number),
        }
        device.send(receivers, contents, number)

    def _end_reduce(self, device: Peer, number: int) -> None:
        """End an all-reduce of a device: make the outer step, and use its result now or later.

        If devices train during the all-reduce (``overlap``), the result is mixed into the device's
        model later, when a training has ended. Otherwise the averaged fragment of the model takes
        the result now, and the device begins its next round.

        Args:
            device: the device, which has received the changes of all devices.
            number: index of the all-reduce.
        """
        state = device.state
        state["inbox"].pop(number, None)
        state["reducing"] = None
        # sorted by device, so that all devices get the same sum to the bit
        contributions = [contribution for _, contribution in sorted(state["known"].items())]
        self._make_outer_step(device, number, contributions)
        if not self._trains_during(number):
            self._mix_fragment(device, number, mixing=0.0)  # the fragment becomes the result
            self._begin_round(device, steps=None)
            return
        state["fresh"] = True  # the result is still to be mixed into the model
        if state["trained"]:  # the device has trained, and has waited for this all-reduce
            self._go_on(device)

    def _make_outer_step(self, device: Peer, number: int, contributions: list[Ref]) -> None:
        """Move the model ``outer`` in a device's state along the mean change of all devices.

        The step has Nesterov momentum: velocity <- m velocity + change, then outer <- outer + lr
        (change + m velocity).

        Args:
            device: the device.
            number: index of the all-reduce, which determines the fragment of the model.
            contributions: the changes of all devices, in ascending order of device IDs.
        """
        state = device.state
        params = self.params
        share = 1.0 / len(contributions)
        zero = device.zero()
        parts = [(contribution, share) for contribution in contributions]
        change = device.mix(parts, otherwise=zero)
        velocity = device.mix(
            [(state["velocity"], params.outer_momentum), (change, 1.0)], otherwise=zero
        )
        step = [(change, params.outer_lr), (velocity, params.outer_lr * params.outer_momentum)]
        outer = device.mix([(state["outer"], 1.0), *step], otherwise=state["outer"])
        # velocity and outer model keep their values outside the averaged fragment
        for name, value in (("velocity", velocity), ("outer", outer)):
            state[name] = self._replace_fragment(device, number, state[name], value)

    def _begin_round(self, device: Peer, steps: int | None) -> None:
        device.state["round"] += 1
        self._train(device, steps)

    def _trains_during(self, number: int) -> bool:
        """Return whether devices train during the all-reduce of this index.

        They do with ``overlap``, except during the last all-reduce of the run.
        """
        return bool(self.params.overlap) and number + 1 != self.setting.planned_rounds

    def _mix_last_result(self, device: Peer) -> None:
        self._mix_fragment(device, device.state["round"] - 1, self.params.mixing)
        device.state["fresh"] = False

    def _mix_fragment(self, device: Peer, number: int, mixing: float) -> None:
        """Mix the result of an all-reduce into the fragment of a device's model.

        A fragment is the range of weights that the all-reduce has averaged.

        Args:
            device: the device, whose ``model`` in its state is replaced.
            number: index of the all-reduce.
            mixing: weight of the device's own values in the mix, 0 to 1.
        """
        state = device.state
        parts = [(state["model"], mixing), (state["outer"], 1.0 - mixing)]
        mixed = device.mix(parts, otherwise=state["outer"])
        state["model"] = self._replace_fragment(device, number, state["model"], mixed)

    def _replace_fragment(self, device: Peer, number: int, model: Ref, values: Ref) -> Ref:
        """Return ``model``, with ``values`` in the fragment that an all-reduce averages."""
        ranges = self._fragment_ranges(number)
        return device.splice(model, values, ranges) if ranges else values

    def _fragment_ranges(self, number: int) -> Places:
        """Return the weights that an all-reduce averages, as ranges of a flat model.

        Args:
            number: index of the all-reduce.

        Returns:
            One pair (begin, end); an empty tuple if the whole model is averaged.
        """
        count = self.params.fragments
        if count == 1:
            return ()
        size = self.setting.parameters
        fragment = number % count
        begin = fragment * size // count
        end = (fragment + 1) * size // count
        return ((begin, end),)


class DiLoCo(Peers[DiLoCoParams]):
    """DiLoCo: devices make many local steps, then an outer Nesterov step along their mean change.

    Source: Douillard et al. 2023 (DiLoCo), Algorithm 1; with fragments and ``overlap`` Douillard et
    al. 2025 (Streaming DiLoCo). The inner optimiser is SGD; the papers have AdamW.

    There is no server. All devices have the same outer model x, which is divided into ``fragments``
    equal parts. A round of the run is one synchronisation, which updates one fragment, in turn:

    - Each device makes ``local_steps`` SGD steps on its own model, or ``local_epochs`` epochs.
    - An all-reduce among the devices averages their changes, own model minus x, of the fragment (d
      / ``fragments`` parameters; content ``part``). The changes are encoded by the scenario's codec
      for uploads (key ``messages.up``), and summed exactly.
    - Each device makes the outer step on this fragment of x, with the mean change: v <- m v +
      change, then x <- x + lr (change + m v). v is the velocity, m is ``outer_momentum``, and lr is
      ``outer_lr``.
    - Each device replaces this fragment of its own model by the fragment of x, and goes on with the
      next round. With several fragments the rest of its model stays as it was trained.

    With ``overlap`` devices do not wait for the all-reduce. They go on training, and later replace
    the fragment by a weighted mean of their own values and x (keys ``overlap`` and ``mixing``).
    """

    Params: ClassVar[type[DiLoCoParams]] = DiLoCoParams
    Client = _DiLoCoClient
    Half = DiLoCoHalf


class LocalSGDParams(DiLoCoParams):
    """Keys of ``[strategy]`` for local SGD: the keys of DiLoCo with other defaults.

    By default the outer step sets the model to the mean of the devices' models.

    Attributes:
        outer_lr: the outer learning rate; 1 by default.
        outer_momentum: factor of the outer Nesterov momentum; 0 by default.
    """

    kind: Literal["local-sgd"] = "local-sgd"  # type: ignore[assignment]
    outer_lr: float = Field(default=1.0, gt=0.0, le=1e6)
    outer_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)


class LocalSGD(DiLoCo):
    """Local SGD: after some SGD steps each device replaces its model by the mean of all models.

    Source: Stich 2019. There is no server; the devices compute the mean by an all-reduce (d
    parameters; content ``part``). The key ``local_steps`` is the number of SGD steps.
    """

    Params = LocalSGDParams
