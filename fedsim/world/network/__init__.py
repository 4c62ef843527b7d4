"""The network: flows between the server and devices, which share links by max-min fairness."""

from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction, Flow
from fedsim.world.network.graph import Graph
from fedsim.world.network.spec import DeviceLinks, GraphSpec, NetworkSpec, ServerLinks, StarSpec, TreeSpec
from fedsim.world.network.star import Star

__all__ = [
    "DeviceLinks",
    "Direction",
    "Flow",
    "Graph",
    "GraphSpec",
    "Network",
    "NetworkSpec",
    "ServerLinks",
    "Star",
    "StarSpec",
    "TreeSpec",
]
