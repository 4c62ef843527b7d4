"""Processes of the world: their base, and the registry by which a scenario names one."""

from collections.abc import Generator
from functools import cache
from inspect import isgeneratorfunction, signature
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, create_model

from fedsim.clock.environment import ProcessGenerator
from fedsim.common.errors import ScenarioError, show_value
from fedsim.common.imports import import_object
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import returns
from fedsim.common.spec import Spec
from fedsim.common.table_classes import keys_of

if TYPE_CHECKING:
    from fedsim.world.processes.world import World


def _find_wrong_run(events: object, *_: object, **__: object) -> str:
    """Return ``""`` if the result of ``Process.run`` is a generator, otherwise the result as text."""
    return "" if isinstance(events, Generator) else show_value(events)


class Process(Spec):
    """Base of every process of the world: its parameters and its actions.

    A process that can be saved sets ``restorable`` and stores its state in ``world.state``. It may
    wait only for ``world.until``, ``send``, ``compute``, ``until_available``, and events of SimPy
    processes that it has started. When a run is resumed, ``run`` is called again with the saved
    state. Without letting time pass, it must begin its holds (effects such as ``world.off``) again
    and wait for the same events as before. A call of ``send`` or ``compute`` with equal arguments
    continues the saved message or computation. Nothing is recorded meanwhile.

    Example:
        An outage of all devices, in ``mine.py``:

        >>> from fedsim.plugin import Process, Seconds
        >>> class Outage(Process):
        ...     begin: Seconds = 10.0
        ...     length: Seconds = 5.0
        ...     def run(self, world):
        ...         yield world.until(self.begin)
        ...         with world.off(range(world.devices)):
        ...             yield world.timeout(self.length)

        A scenario names the class in ``[world] processes``:

        >>> import fedsim
        >>> outage = {"kind": "mine:Outage", "begin": "2 s"}
        >>> world = fedsim.build_world({"devices": 2}, {"kind": "star"}, processes=[outage])
        >>> world.env.run(until=3.0)
        >>> world.available(0)
        False
    """

    restorable: ClassVar[bool] = False
    """Whether a run with the process can be saved and resumed."""

    kind: str

    def check(self, world: "World") -> None:
        """Check that the process can run in a world; called when the run is built.

        By default, a process can run in every world.

        Args:
            world: the world, at time 0.

        Raises:
            SimulationError: the world lacks something that the process needs, such as a link.
        """

    @returns("a generator, as a function with 'yield' does", _find_wrong_run)
    def run(self, world: "World") -> Generator[Any, Any, Any]:
        """Return the generator of the SimPy process, which starts when the run starts.

        Args:
            world: API of the world for this process.

        Returns:
            A generator that yields SimPy events.
        """
        raise NotImplementedError


@cache
def _make_process_class(function: FunctionType, path: str) -> type[Process]:
    """Make a class of a process from a generator function ``f(world, ...)``.

    The method ``run`` of the class calls the function.

    Args:
        function: the function; its parameters after the first become keys of the scenario.
        path: the function's import path, for the error message.

    Raises:
        ScenarioError: the function is no generator function, or has no parameter.
    """
    if not isgeneratorfunction(function) or not signature(function).parameters:
        raise ScenarioError(
            f"kind is {path!r}; allowed is a generator function: 'def f(world, ...)' with 'yield'"
        )
    fields, _ = keys_of(function)  # a parameter ``**`` gets no keys

    def run(self: Process, world: "World") -> ProcessGenerator:
        yield from function(world, **{name: getattr(self, name) for name in fields})

    # ``create_model`` adds fields only, so a base class brings the method ``run``
    name = function.__name__
    module = function.__module__
    base = type(name, (Process,), {"run": run, "__module__": module})
    return create_model(name, __base__=base, __module__=module, **fields)


class _ProcessRegistry(Registry):
    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """Return the class of a process that a scenario names.

        Args:
            kind: a registered kind, or an import path of a class or of a generator function, for
                which a class is made.
            key: the key of the scenario, for error messages.
        """
        if ":" in kind:
            target = import_object(kind, key)
            if isinstance(target, FunctionType):
                return _make_process_class(target, kind)
        return super().spec(kind, key)


_TOOLS = "fedsim.toolbox.worlds.processes"
PROCESSES = _ProcessRegistry(
    "process of the world",
    "fedsim.world.processes.base:Process",
    {
        "link-outage": (f"{_TOOLS}:LinkOutage", "a link fails from time to time, or carries less"),
        "upload-slots": (
            f"{_TOOLS}:UploadSlots",
            "the server takes so many uploads at a time, the others queue",
        ),
        "heat": (
            f"{_TOOLS}:Heat",
            "devices get warm while they compute, and are slow until they are cool",
        ),
        "edge-outage": (
            f"{_TOOLS}:EdgeOutage",
            "an edge server fails from time to time, or is cut off",
        ),
    },
    usual="link-outage",
    key="world.processes",
)


class WorldSpec(Spec):
    """``[world]``: processes of the world, such as outages, in addition to fedsim's own.

    Attributes:
        processes: list of processes, each a kind, a table with a kind and its parameters, or an
            import path.
    """

    processes: list[Annotated[Process, KindField(PROCESSES)]] = Field(default_factory=list)

    @property
    def not_restorable(self) -> str | None:
        """Reason why a run with these processes cannot be saved and resumed; None if it can."""
        for process in self.processes:
            if not process.restorable:
                return (
                    f"the process {process.kind!r} does not say how it is restored (see "
                    "fedsim.plugin.Process)"
                )
        return None
