"""Public names for authors of strategies, their parts, data, meters and processes of the world.

Import them by ``from fedsim.plugin import ...``.

A strategy consists of a server half (``Strategy``, or one of its subclasses) and a client half
(``Client``), which communicate by messages only. The docstring of each class documents its hooks,
their arguments, and when they are called.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.streams import Streams
from fedsim.common.training import (
    ALL_SAMPLES,
    Batching,
    Contrast,
    Limit,
    LocalEpochs,
    LocalSteps,
    ModelCut,
    Part,
    Proximal,
    Training,
)
from fedsim.common.units import (
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Flops,
    Joules,
    JoulesPerByte,
    LinkRate,
    PerSecond,
    PositiveBytes,
    PositiveSeconds,
    SamplesPerSecond,
    Seconds,
    Watts,
)
from fedsim.federation.client import (
    BEST,
    Client,
    Instruction,
    LocalResult,
    PreviousResult,
    Real,
    RunInfo,
)
from fedsim.federation.clients import Clients
from fedsim.federation.codecs import Arithmetic, Codec, Coded
from fedsim.federation.contents import Contents, Header, Lazy, Opaque, Partial
from fedsim.federation.devices import Device
from fedsim.federation.events import Carried, PeerMessage, TaskEnd
from fedsim.federation.peer import EncodedModel, Peer
from fedsim.federation.round_result import Measured
from fedsim.federation.server import Server
from fedsim.federation.server_edges import ServerEdges
from fedsim.federation.server_models import ServerModels
from fedsim.learning.architecture import Tensor
from fedsim.learning.data.federated import NO_GROUP, Dataset, FederatedData, Pool, Raw, Shard
from fedsim.learning.data.partitions import Partition, federated
from fedsim.learning.data.shifts import Change, Occasions, Shift
from fedsim.learning.data.sources import Source
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref
from fedsim.learning.spec import Trainer
from fedsim.records.reading import RunFolder
from fedsim.strategies.asynchronous import (
    Asynchronous,
    AsynchronousParams,
    AsynchronousState,
    OpenTask,
)
from fedsim.strategies.base import Strategy
from fedsim.strategies.fedasync import FedAsync, FedAsyncParams
from fedsim.strategies.fedavg import FedAvg, FedAvgParams, FedAvgState
from fedsim.strategies.fedbuff import FedBuff, FedBuffParams, FedBuffState
from fedsim.strategies.fedprox import FedProx, FedProxParams
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.parts.aggregation import Aggregation, AggregationSpec
from fedsim.strategies.parts.deadline import Deadline, DeadlineSpec
from fedsim.strategies.parts.selection import Selection, SelectionSpec
from fedsim.strategies.parts.server_optimizer import ServerOptimizer, ServerOptimizerSpec
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import (
    AggregatingParams,
    CombiningParams,
    RoundParams,
    SelectingParams,
    SynchronousParams,
)
from fedsim.strategies.round_state import SynchronousState
from fedsim.strategies.scaffold import Scaffold, ScaffoldParams, ScaffoldState
from fedsim.strategies.state import State
from fedsim.strategies.synchronous import Synchronous, SynchronousClient
from fedsim.strategies.traits import Traits
from fedsim.strategies.updates import AsynchronousUpdate, Update
from fedsim.toolbox.attacks import Attack
from fedsim.toolbox.peers.base import PeerHalf, PeerParams, Peers, PeersState
from fedsim.toolbox.peers.collectives import AllReduce
from fedsim.toolbox.strategies.grouped import (
    ClusteredParams,
    Grouped,
    GroupedParams,
    GroupedState,
    Preparation,
)
from fedsim.world.availability import Availability, AvailabilityModel
from fedsim.world.calendar import Calendar
from fedsim.world.distributions import Distribution
from fedsim.world.meters.base import Column, Meter, MeterContext
from fedsim.world.meters.ended import Step, Transfer
from fedsim.world.network.endpoints import SERVER, Endpoints
from fedsim.world.network.filling import Sharing
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Protocol, Transport
from fedsim.world.network.spec import DeviceLinks, NetworkModel
from fedsim.world.phases import Span
from fedsim.world.population_spec import PopulationSpec
from fedsim.world.processes import Activity, DeviceFacts, Hold, Process, World
from fedsim.world.steps import Download, Evaluate, Pause, Payload, TaskStep, Train, Upload, Work

if TYPE_CHECKING:
    from fedsim.learning.solvers.context import LocalData, TrainingContext

# name -> module that loads torch, and is therefore imported only when the name is first used
_HEAVY = {"LocalData": "learning.solvers.context", "TrainingContext": "learning.solvers.context"}

__all__ = [  # noqa: RUF022 - by task
    # A strategy: its server half, its client half, and what they send each other.
    "Strategy", "StrategyParams", "Traits", "Reasons",
    "FedAvg", "FedAvgParams", "FedProx", "FedProxParams", "Scaffold", "ScaffoldParams",
    "Synchronous", "SynchronousClient", "RoundParams", "SelectingParams", "CombiningParams",
    "SynchronousParams", "AggregatingParams",
    "Asynchronous", "AsynchronousParams", "FedBuff", "FedBuffParams", "FedAsync", "FedAsyncParams",
    "Grouped", "GroupedParams", "ClusteredParams", "Preparation",
    "State", "SynchronousState", "FedAvgState", "ScaffoldState", "AsynchronousState", "FedBuffState", "GroupedState",
    "Update", "AsynchronousUpdate", "OpenTask",
    "Server", "Clients", "ServerModels", "ServerEdges", "TaskEnd", "Carried", "Client", "Device", "Instruction",
    "LocalResult", "PreviousResult", "RunInfo", "BEST", "Real", "Contents", "Header", "Lazy", "Opaque", "Partial", "Ref",
    "pure", "Train", "Evaluate", "Work", "Pause", "TaskStep", "Download", "Upload", "Payload",
    "Limit", "Training", "LocalEpochs", "LocalSteps", "Batching",
    "ALL_SAMPLES", "Proximal", "Contrast", "ModelCut", "Tensor", "Measured",
    # A strategy without a server.
    "Peers", "PeersState", "PeerHalf", "PeerParams", "Peer", "EncodedModel", "PeerMessage",
    # Exchangeable parts of strategies, and the tables of their keys.
    "Selection", "SelectionSpec", "Deadline", "DeadlineSpec", "Aggregation", "AggregationSpec", "ServerOptimizer",
    "ServerOptimizerSpec", "Codec", "Coded", "Arithmetic", "Attack",
    # Data, and how they shift.
    "Source", "Raw", "Dataset", "Pool", "Partition", "Part", "federated", "FederatedData", "Shard", "NO_GROUP", "Shift",
    "Occasions", "Change",
    # A trainer of clients' models.
    "Trainer", "LocalData", "TrainingContext",
    # The world: availability, network, processes.
    "AvailabilityModel", "Availability", "Span", "Calendar", "Distribution", "PopulationSpec", "NetworkModel", "DeviceLinks",
    "Network", "Endpoints", "SERVER", "Flow", "Sharing", "Protocol", "Transport", "Process", "AllReduce", "World", "Activity",
    "Hold", "DeviceFacts",
    # A meter.
    "Meter", "MeterContext", "Column", "Step", "Transfer",
    # Tables of keys for all of these, and types of quantities with units.
    "Spec", "StopSpec", "Seconds", "PositiveSeconds", "Bytes", "PositiveBytes", "BytesPerSecond", "LinkRate",
    "SamplesPerSecond", "PerSecond", "FlopPerSecond", "Flops", "Watts", "Joules", "JoulesPerByte",
    # Random numbers, and the reader of run folders, such as for checks of the audit.
    "Streams", "RunFolder",
]  # fmt: skip


_EARLIER = {"ServerOptimiser": ServerOptimizer, "ServerOptimiserSpec": ServerOptimizerSpec}
"""Former name of a public class -> the class; to import the former name is deprecated."""


def __getattr__(name: str) -> Any:
    if name in _EARLIER:
        present = name.replace("Optimiser", "Optimizer")
        message = f"fedsim.plugin.{name} is called {present} now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return _EARLIER[name]
    if name not in _HEAVY:
        raise AttributeError(f"module 'fedsim.plugin' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"fedsim.{_HEAVY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
