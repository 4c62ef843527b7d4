"""Processes of the world: their base, those that come with fedsim, and how a scenario names one."""

from collections.abc import Generator
from functools import cache
from inspect import isgeneratorfunction, signature
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, create_model

from fedsim.clock.environment import ProcessGenerator
from fedsim.common.errors import ScenarioError, shown
from fedsim.common.imports import named
from fedsim.common.registry import Registry, keys_of
from fedsim.common.returns import returns
from fedsim.common.spec import Spec

if TYPE_CHECKING:
    from fedsim.world.processes.world import World


def _find_wrong_run(events: object, *_: object, **__: object) -> str:
    return "" if isinstance(events, Generator) else shown(events)


class Process(Spec):
    """The base of every process of the world: its parameters and its actions.

    One that can be saved sets ``restorable``, keeps all that it must remember in ``world.state``,
    and waits for nothing but ``world.until``, ``send``, ``compute``, ``until_available`` and what
    other processes of its own fire. To resume a run ``run`` is called again with the saved state.
    It must then, without delay, hold what it held and wait for what it waited for. A call with the
    same arguments takes up what had begun. Nothing is recorded until then.
    """

    restorable: ClassVar[bool] = False
    """Whether a run with it can be saved and resumed."""

    kind: str

    def check(self, world: "World") -> None:
        """Raise ``SimulationError`` if this cannot be done in such a world.

        Called when the run is built.
        """

    @returns("a generator, as a function with 'yield' does", _find_wrong_run)
    def run(self, world: "World") -> Generator[Any, Any, Any]:
        """Process of SimPy: it yields events. It begins when the run does."""
        raise NotImplementedError


@cache
def _of_function(function: FunctionType, path: str) -> type[Process]:
    """A process that is a generator function ``f(world, ...)``: its other parameters are the
    scenario's keys.
    """
    if not isgeneratorfunction(function) or not signature(function).parameters:
        raise ScenarioError(
            f"kind is {path!r}; allowed is a generator function: 'def f(world, ...)' with 'yield'"
        )
    fields, _ = keys_of(function)

    def run(self: Process, world: "World") -> ProcessGenerator:
        yield from function(world, **{name: getattr(self, name) for name in fields})

    base = type(function.__name__, (Process,), {"run": run, "__module__": function.__module__})
    return create_model(function.__name__, __base__=base, __module__=function.__module__, **fields)


class _ProcessRegistry(Registry):
    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """The class of a kind, one made for it where its path leads to a function."""
        found = named(kind, key) if ":" in kind else None
        return (
            _of_function(found, kind)
            if isinstance(found, FunctionType)
            else super().spec(kind, key)
        )


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
    """``[world]``: further processes of the world."""

    processes: list[Annotated[Process, PROCESSES]] = Field(default_factory=list)
    """each a kind, a table with a kind and its parameters, or one's own by import path."""

    @property
    def not_restorable(self) -> str | None:
        """Why a run with these processes cannot be saved and resumed; None if it can."""
        names = [repr(process.kind) for process in self.processes if not process.restorable]
        return (
            f"the process {names[0]} does not say how it is restored (see fedsim.plugin.Process)"
            if names
            else None
        )
