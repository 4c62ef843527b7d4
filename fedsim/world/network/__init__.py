"""The network: flows between any two endpoints, which share links by max-min fairness.

A flow begins and ends in ``flows``; ``star`` or ``filling`` finds its rate; ``protocol`` adds headers and slow start.
"""

from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.network.flows import Flow, Network
from fedsim.world.network.spec import NetworkSpec, StarSpec
from fedsim.world.network.star import Star

__all__ = ["SERVER", "Direction", "Flow", "Network", "NetworkSpec", "Star", "StarSpec", "ends"]
