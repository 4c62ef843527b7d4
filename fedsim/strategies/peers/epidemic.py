"""Epidemic learning: in each round a device sends its model to some others, drawn anew."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.federation.client import RunInfo
from fedsim.federation.peer import Peer
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.peers.base import PeerHalf, PeerParams, Peers
from fedsim.strategies.peers.rounds import RoundHalf

_KEPT = 8  # rounds whose draws are kept; devices are in few at a time


class EpidemicParams(PeerParams):
    """What epidemic learning takes.

    Attributes:
        sample_size: s, to how many others a device sends in a round.
    """

    kind: Literal["epidemic"] = "epidemic"
    sample_size: int = Field(default=2, ge=1)

    def check(self, devices: int) -> None:
        if self.sample_size >= devices:
            allowed = f"with {devices} devices allowed are 1 to {devices - 1}"
            raise ScenarioError(f"strategy.sample_size is {self.sample_size}; {allowed}")


class EpidemicHalf(RoundHalf[EpidemicParams]):
    """Trains, sends to s others, and takes the mean of what it has and receives."""

    def __init__(self, params: EpidemicParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._drawn: dict[int, tuple[list[list[int]], list[list[int]]]] = {}

    def _draw(self, device: Peer, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """To whom each device sends in a round, and who sends to it."""
        if number not in self._drawn:
            rng, devices = device.rng("epidemic", number), self.setting.devices
            draws = [rng.choice(devices - 1, self.params.sample_size, replace=False) for _ in range(devices)]
            if len(self._drawn) >= _KEPT:
                self._drawn.pop(next(iter(self._drawn)))
            receivers = [sorted((draw + (draw >= one)).tolist()) for one, draw in enumerate(draws)]
            senders: list[list[int]] = [[] for _ in range(devices)]
            for one, drawn in enumerate(receivers):
                for other in drawn:
                    senders[other].append(one)
            self._drawn[number] = receivers, senders
        return self._drawn[number]

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        return self._draw(device, number)[0][device.number]

    def senders(self, device: Peer, number: int) -> Sequence[int]:
        """Those that have drawn it; it knows from the common seed, as in EL-Oracle."""
        return self._draw(device, number)[1][device.number]

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        return 1.0 / (1.0 + received)


class Epidemic(Peers[EpidemicParams]):
    """De Vos et al. 2023 (Epidemic Learning), Algorithm 1, EL-Local's draws.

    In each round a device trains, sends the result to s others that it draws (d parameters each, ``model``), and takes the mean
    of its own and all that it receives. All draw from one seed, so that a device knows for whom to wait.
    """

    Params: ClassVar[type[StrategyParams]] = EpidemicParams
    Half: ClassVar[type[PeerHalf[Any]]] = EpidemicHalf
