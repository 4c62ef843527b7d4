"""Resources of a node that a task on Ray reserves, by which Ray places tasks on nodes."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.units import Bytes, read_quantity, show_bytes

_OPTION = "--resources"
_EXAMPLE = """'{"num_cpus": 1, "num_gpus": 0.25, "memory": "2 GB"}'"""
_KEYS = ("num_cpus", "num_gpus", "memory", "named")
_MOST = 100_000  # greatest amount of a resource
_STEP = 0.0001  # amounts of resources in Ray are multiples of this step


@dataclass(frozen=True)
class TaskResources:
    """Cores, GPUs and memory that each Ray task reserves on a node (``--resources``).

    Ray only adds up what tasks declare: a task may use more threads or memory. Of the node's GPUs,
    a task sees only those that it has reserved.

    Attributes:
        num_cpus: cores.
        num_gpus: GPUs; below 1, several tasks share one.
        memory: memory (bytes).
        named: other resources that ``ray start --resources`` declares for nodes: name -> amount
            that a task reserves.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int = 0
    named: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, declared: "str | Mapping[str, object] | None") -> "TaskResources":
        """Read the resources of a task as the user declares them.

        Args:
            declared: a table with any of the attributes of ``TaskResources`` as keys, or its text in
                JSON; ``memory`` has a unit, such as ``"2 GB"``. None for one core.

        Raises:
            ScenarioError: the text is not such a table.

        Example:
            >>> TaskResources.read('{"num_gpus": 0.25, "memory": "2 GB"}').memory
            2000000000
        """
        if declared is None:
            return cls()
        table = _parse(declared) if isinstance(declared, str) else declared
        if not isinstance(table, Mapping):
            raise ScenarioError(
                f"{_OPTION} is {declared!r}; it must be a table, such as {_EXAMPLE}"
            )
        for key in table:
            if key not in _KEYS:
                raise ScenarioError(
                    f"{_OPTION} has the unknown key {key!r}; allowed are "
                    f"{', '.join(_KEYS)}{nearest(str(key), _KEYS)}"
                )
        resources = cls(
            named=_named_amounts(table.get("named", {})),
            num_cpus=_amount("num_cpus", table.get("num_cpus", 1.0)),
            num_gpus=_amount("num_gpus", table.get("num_gpus", 0.0)),
            memory=_memory(table.get("memory", 0)),
        )
        if not any(resources.demand.values()):
            raise ScenarioError(
                f"{_OPTION} asks for nothing, so that any number of tasks would run at once; "
                f"allowed is for example {_EXAMPLE}"
            )
        return resources

    @property
    def demand(self) -> dict[str, float]:
        """Amounts that a task reserves, as Ray takes them: Ray's name of a resource -> amount."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": self.memory, **self.named}

    def count_on(self, node: Mapping[str, float]) -> int:
        """Return how many tasks with these resources a Ray node can run at a time.

        Args:
            node: resources of the node: Ray's name of a resource -> amount.
        """
        counts = []
        for name, amount in self.demand.items():
            if amount:
                counts.append(math.floor(node.get(name, 0.0) / amount + _STEP))
        return min(counts)

    def refuse_unplaceable(self, nodes: Iterable[Mapping[str, float]]) -> None:
        """Raise ``ScenarioError`` if no node of Ray has the resources that a task reserves.

        Args:
            nodes: resources of each node: Ray's name of a resource -> amount.
        """
        all_nodes = [*nodes]
        if any(map(self.count_on, all_nodes)):  # at least one node can run a task
            return
        # if all nodes have too little of one resource, the error names only this resource
        for name, amount in self.demand.items():
            most = max((node.get(name, 0.0) for node in all_nodes), default=0.0)
            if most < amount:
                raise ScenarioError(
                    f"{_OPTION} asks for {_show(name, amount)} a task, but the node with the most "
                    f"has {_show(name, most)}, so nothing could ever run"
                )
        raise ScenarioError(
            f"{_OPTION} asks for {', '.join(_show(*item) for item in self.demand.items())} a task, "
            "which no single node has, so nothing could ever run"
        )


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(
            f"{_OPTION} is {text!r}, which is not JSON ({error}); allowed is for example {_EXAMPLE}"
        ) from None


def _named_amounts(named: object) -> dict[str, float]:
    """Check the amounts of named resources that a user declares, and return them by name."""
    if not isinstance(named, Mapping):
        raise ScenarioError(
            f"{_OPTION}: named is {named!r}; it must be a table of amounts, such as "
            '{"fast_disk": 1}'
        )
    amounts = {}
    for name, amount in named.items():
        if name in _KEYS or name in ("CPU", "GPU"):
            raise ScenarioError(f"{_OPTION}: named has {name!r}, which has a key of its own")
        amounts[str(name)] = _amount(f"named.{name}", amount)
    return amounts


def _amount(key: str, value: object) -> float:
    """Return the amount of a resource as a number; ``ScenarioError`` if Ray cannot count it.

    Args:
        key: name of the resource, for the message.
        value: the amount that the user gave.
    """
    amount = -1.0  # stands for a value that is no number, and is refused below
    if isinstance(value, int | float) and not isinstance(value, bool):
        amount = float(value)
    if not 0 <= amount <= _MOST:
        raise ScenarioError(
            f"{_OPTION}: {key} is {value!r}; allowed is a number from 0 to {_MOST:,}"
        )
    if 0 < amount < _STEP:
        raise ScenarioError(f"{_OPTION}: {key} is {value!r}; Ray counts no less than {_STEP}")
    if amount > 1 and not amount.is_integer():
        raise ScenarioError(f"{_OPTION}: {key} is {value!r}; above 1, Ray takes whole numbers only")
    return amount


def _memory(value: object) -> int:
    """Return an amount of memory (bytes) that a user wrote with a unit, such as ``2 GB``."""
    if value == 0 and not isinstance(value, bool):
        return 0
    if not isinstance(value, str):
        raise ScenarioError(
            f"{_OPTION}: memory is {value!r}; it is text with a unit, such as '2 GB'"
        )
    return math.ceil(read_quantity(f"{_OPTION}: memory", value, Bytes))


def _show(name: str, amount: float) -> str:
    if name == "memory":
        return f"{show_bytes(amount)} of memory"
    return f"{amount:g} {name}"
