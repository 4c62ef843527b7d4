"""All that the author of a strategy, of a part of one, or of a process of the world needs: ``from fedsim.plugin import ...``.

A strategy is a server half (``Strategy``, or one of its loops) and a client half (``Client``) that know each other by messages
alone. What each is called with, and when, stands in its docstring.
"""

from fedsim.federation.client import BEST, Client, Done, Order, Setting
from fedsim.federation.contents import Contents, Free, Lazy
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.instrument import Measured
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.spec import Spec
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.strategies.grouped import Grouped, GroupedParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient, SynchronousParams
from fedsim.training import Limit, Part, Training
from fedsim.world.processes import Hold, Process, World
from fedsim.world.task import Evaluate, Train

__all__ = [
    "BEST",
    "Asynchronous",
    "AsynchronousParams",
    "Client",
    "Contents",
    "Device",
    "Done",
    "Evaluate",
    "Free",
    "Grouped",
    "GroupedParams",
    "Hold",
    "Lazy",
    "Limit",
    "Measured",
    "Order",
    "Part",
    "Process",
    "Ref",
    "Server",
    "Setting",
    "Spec",
    "Strategy",
    "StrategyParams",
    "Synchronous",
    "SynchronousClient",
    "SynchronousParams",
    "TaskEnd",
    "Train",
    "Training",
    "World",
    "pure",
]
