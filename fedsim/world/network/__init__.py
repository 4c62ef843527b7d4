"""Network models, in which flows between two endpoints share links.

``flows.py`` has what all networks do: latencies, begins and ends of flows. Flows share links by a
rule: in a star by ``star.py``, in other networks by ``filling.py``, both of which are max-min fair.
Links with queues, on which senders have congestion windows, have a rule in ``queues``.
"""

from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.network.spec import NetworkSpec, StarSpec
from fedsim.world.network.star import Star

__all__ = ["SERVER", "Direction", "Flow", "Network", "NetworkSpec", "Star", "StarSpec", "ends"]
