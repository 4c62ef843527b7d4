"""The base of strategies whose devices average by an all-reduce: a sum of all, in the messages of a ring, tree or butterfly."""

from typing import Any, ClassVar, Literal, TypeVar

from fedsim.errors import ScenarioError, SimulationError
from fedsim.federation import Contents, Header, Opaque, Partial, Peer, RunInfo
from fedsim.learning.refs import Ref
from fedsim.toolbox.peers.base import PeerHalf, PeerParams
from fedsim.toolbox.peers.collectives import Collective, collective
from fedsim.world.population import PopulationSpec


class CollectiveParams(PeerParams):
    """Parameters of strategies that average by an all-reduce.

    Attributes:
        collective: the all-reduce. ``ring``: each device sends 2 (n - 1) parts of 1/n to the next one. ``tree``: sums go up a
            binary tree and the result comes down. ``butterfly``: each device owns 1/n, gets that from all others and sends them
            the sum. Through a server it is ``fedavg``.
        start: ``same``: an all-reduce keeps devices at one model.
        deadline: none: an all-reduce waits for every device.
    """

    collective: Literal["ring", "tree", "butterfly"] = "ring"
    start: Literal["same"] = "same"
    deadline: None = None

    def check(self, devices: int) -> None:
        if devices < 2:
            raise ScenarioError(f"population.devices is {devices}; {self.kind!r} averages over 2 or more")

    def check_population(self, population: PopulationSpec) -> None:
        if population.comes_and_goes:
            raise ScenarioError(
                f"strategy.kind is {self.kind!r}, whose all-reduces wait for every device, but devices of this population come "
                "and go; allowed is population.availability 'always', without arrivals and departures"
            )


C = TypeVar("C", bound=CollectiveParams)


class CollectiveHalf(PeerHalf[C]):
    """A device's half with one all-reduce at a time, which goes on while it trains.

    A message has its bytes, and in its header the contributions that are summed up in it; all add these up in one order.

    State besides ``PeerHalf``'s: ``reducing``, the number of the all-reduce under way, or None; ``step``, of its program;
    ``known``, device -> contribution; ``bytes``, of the whole vector; ``inbox``, number -> sender -> what came, in order.
    """

    begins: ClassVar[dict[str, Any]] = {"reducing": None, "step": 0, "known": {}, "bytes": 0.0}

    def __init__(self, params: C, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._collective: Collective = collective(params.collective, setting.devices)

    def reduced(self, device: Peer, number: int, contributions: list[Ref]) -> None:
        """The all-reduce of this number is over; the contributions of all devices, in their order."""
        raise NotImplementedError

    def on_start(self, device: Peer) -> None:
        device.state.update({**self.begins, "inbox": {}})

    def reduce(self, device: Peer, number: int, contribution: Ref | Partial) -> None:
        """Take part in the all-reduce of this number, in the form that ``messages.up`` says."""
        written, size = device.written(contribution)
        device.state.update({"reducing": number, "step": 0, "known": {device.number: written}, "bytes": size})
        self._go_on(device)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        came = device.state["inbox"].setdefault(contents["number"], {})
        came.setdefault(sender, []).append(contents["known"])
        self._go_on(device)

    def on_return(self, device: Peer) -> None:
        raise SimulationError(
            f"device {device.number} was switched off, but the all-reduces of {self.params.kind!r} wait for every device: let "
            "no process of the world switch one off"
        )

    def on_lost(self, device: Peer, other: int) -> None:
        self.on_return(device)

    def _go_on(self, device: Peer) -> None:
        state = device.state
        number, program = state["reducing"], self._collective.programs[device.number]
        if number is None:
            return
        came = state["inbox"].get(number, {})
        while state["step"] < len(program):
            step = program[state["step"]]
            if not all(came.get(sender) for sender in step.receive):
                return
            for sender in step.receive:
                state["known"] |= came[sender].pop(0)
            state["step"] += 1
            if step.send:
                part = Opaque(None, state["bytes"] * self._collective.share)
                device.send(step.send, {"part": part, "known": Header(dict(state["known"])), "number": Header(number)}, number)
        state["inbox"].pop(number, None)
        state["reducing"] = None
        self.reduced(device, number, [state["known"][one] for one in sorted(state["known"])])
