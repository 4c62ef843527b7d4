"""The names for authors of strategies, parts, data, meters and processes of the world: ``from fedsim.plugin import ...``.

A strategy consists of a server half (``Strategy``, or one of its subclasses) and a client half (``Client``), which communicate
by messages only. The docstring of each class documents its hooks, their arguments, and when they are called.
"""

from fedsim.data.federated import Raw
from fedsim.data.partitions import Partition, federated
from fedsim.data.shifts import Change, Shift
from fedsim.data.sources import Source
from fedsim.evaluation.evaluator import Measured
from fedsim.federation.client import BEST, Client, Instruction, LocalResult, PreviousResult, Real, RunInfo
from fedsim.federation.codecs import Codec, Coded
from fedsim.federation.contents import Contents, Header, Lazy, Opaque, Partial, TaskEnd
from fedsim.federation.devices import Device
from fedsim.federation.server import Peer, Server
from fedsim.language.spec import Spec
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.learning.spec import Trainer
from fedsim.meters.base import Column, Meter, MeterContext, Step, Transfer
from fedsim.records.reading import RunFolder
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import Aggregation
from fedsim.strategies.parts.deadline import Deadline
from fedsim.strategies.parts.selection import Selection
from fedsim.strategies.parts.server import ServerOptimiser
from fedsim.strategies.round_params import AggregatingParams, SynchronousParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient
from fedsim.streams import Streams
from fedsim.toolbox.attacks import Attack
from fedsim.toolbox.peers.base import PeerHalf, PeerParams, Peers
from fedsim.toolbox.peers.collectives import AllReduce
from fedsim.toolbox.strategies.grouped import Grouped, GroupedParams
from fedsim.training import Limit, Part, Training
from fedsim.world.availability import Availability, AvailabilityModel
from fedsim.world.distributions import Distribution
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.filling import Sharing
from fedsim.world.network.flows import Flow, Network
from fedsim.world.network.protocol import Protocol, Transport
from fedsim.world.network.spec import NetworkModel
from fedsim.world.phases import Span
from fedsim.world.processes import Activity, DeviceFacts, Hold, Process, World
from fedsim.world.task import Evaluate, Train, Work

__all__ = [  # noqa: RUF022 - by task
    # A strategy: its server half, its client half, and what they send each other.
    "Strategy", "StrategyParams", "FedAvg", "Synchronous", "SynchronousClient", "SynchronousParams", "AggregatingParams",
    "Asynchronous", "AsynchronousParams", "Grouped", "GroupedParams", "Server", "TaskEnd", "Client", "Device", "Instruction",
    "LocalResult", "PreviousResult", "RunInfo", "BEST", "Real", "Contents", "Header", "Lazy", "Opaque", "Partial", "Ref",
    "pure", "Train", "Evaluate", "Work", "Limit", "Training", "Measured",
    # A strategy without a server.
    "Peers", "PeerHalf", "PeerParams", "Peer",
    # A part of strategies.
    "Selection", "Deadline", "Aggregation", "ServerOptimiser", "Codec", "Coded", "Attack",
    # Data, and how they shift.
    "Source", "Raw", "Partition", "Part", "federated", "Shift", "Change",
    # A trainer of clients' models.
    "Trainer",
    # The world: availability, network, processes.
    "AvailabilityModel", "Availability", "Span", "Distribution", "NetworkModel", "Network", "SERVER", "Flow", "Sharing",
    "Protocol", "Transport", "Process", "AllReduce", "World", "Activity", "Hold", "DeviceFacts",
    # A meter.
    "Meter", "MeterContext", "Column", "Step", "Transfer",
    # Of all of them.
    "Spec", "Streams", "RunFolder",
]  # fmt: skip
