"""D-PSGD: devices average their models with those of their neighbours in a graph, and add what their training changed."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fedsim.federation.client import RunInfo
from fedsim.federation.peer import Peer
from fedsim.strategies.base import StrategyParams
from fedsim.strategies.peers.base import PeerHalf, PeerParams, Peers
from fedsim.strategies.peers.rounds import RoundHalf
from fedsim.strategies.peers.topology import Graphs, Neighbours, Topology, mixing_weight


class GraphParams(PeerParams):
    """What a strategy on a graph takes.

    Attributes:
        topology: who is whose neighbour.
    """

    topology: Topology = Topology()

    def check(self, devices: int) -> None:
        self.topology.check(devices)


class DPSGDParams(GraphParams):
    """What D-PSGD takes."""

    kind: Literal["d-psgd"] = "d-psgd"


class DPSGDHalf(RoundHalf[DPSGDParams]):
    """Sends its model to its neighbours, and trains meanwhile."""

    sends_first = True

    def __init__(self, params: DPSGDParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._graphs = Graphs(params.topology, setting.devices)

    def _neighbours(self, device: Peer, number: int) -> Neighbours:
        return self._graphs.in_round(number, device.rng)

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        return self._neighbours(device, number)[device.number]

    senders = receivers

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        """By Metropolis and Hastings; what is not received stays with its own model."""
        return mixing_weight(self._neighbours(device, number), device.number, sender)


class DPSGD(Peers[DPSGDParams]):
    """Lian et al. 2017 (D-PSGD), Algorithm 1, with local epochs in place of one gradient.

    In round k device i sends its model x_i to its neighbours (d parameters each, ``model``) and trains from it meanwhile. When
    it has theirs, x_i becomes the sum of W_ij x_j, plus what the training changed. W has Metropolis-Hastings weights.
    """

    Params: ClassVar[type[StrategyParams]] = DPSGDParams
    Half: ClassVar[type[PeerHalf[Any]]] = DPSGDHalf
