"""Network models, in which flows between two endpoints share links by max-min fairness."""

from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.network.spec import NetworkSpec, StarSpec
from fedsim.world.network.star import Star

__all__ = ["SERVER", "Direction", "Flow", "Network", "NetworkSpec", "Star", "StarSpec", "ends"]
