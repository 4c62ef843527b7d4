"""The network: flows between any two endpoints, which share links by max-min fairness."""

from fedsim.world.network.base import Network
from fedsim.world.network.flow import SERVER, Direction, Flow, Sharing, ends
from fedsim.world.network.graph import Graph
from fedsim.world.network.spec import DeviceLinks, GraphSpec, NetworkSpec, ServerLinks, StarSpec, TreeSpec
from fedsim.world.network.star import Star

__all__ = [
    "SERVER",
    "DeviceLinks",
    "Direction",
    "Flow",
    "Graph",
    "GraphSpec",
    "Network",
    "NetworkSpec",
    "ServerLinks",
    "Sharing",
    "Star",
    "StarSpec",
    "TreeSpec",
    "ends",
]
