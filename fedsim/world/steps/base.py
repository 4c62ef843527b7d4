"""The base of all kinds of steps.

A step is an interval of a task that can end early, with a cause. A kind of step is a dataclass
that is derived from ``TaskStep``: its methods begin and end the step, its class attributes name
its costs, and its fields are saved in checkpoints.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedsim.clock.simulation import tie_s
from fedsim.world.network.endpoints import Direction

if TYPE_CHECKING:
    from fedsim.world.life import TaskRunner
    from fedsim.world.task import Task

Cause = Literal["late", "lost", "left", "battery", "stopped", "memory"]
"""Cause of a task's early end; ``late``: past its deadline, or no longer needed."""
Outcome = Literal["done", "late", "lost", "left", "battery", "stopped", "memory", "cancelled"]

Power = Literal["receive", "send", "compute"]
"""What a device does, beside idling, that draws power."""

Ending = tuple[Cause | None, dict[str, Any]]
"""Cause by which a step ended (None: it was completed), and further fields of its record."""


class TaskStep:
    """The base of all kinds of steps.

    Attributes:
        kinds: class name -> class of every kind of step; checkpoints save steps of these classes.
        powers: name in records -> the power that a device draws during such a step.
        name: name of the step in records.
        names: all values of ``name``, if a kind of step has several.
        power: the power that the device draws during the step; None for idle power alone.
        direction: direction of a message; None for steps that are no message.
    """

    __slots__ = ()
    kinds: ClassVar[dict[str, type["TaskStep"]]] = {}
    powers: ClassVar[dict[str, Power]] = {}
    names: ClassVar[tuple[str, ...]] = ()
    power: ClassVar[Power | None] = None
    direction: ClassVar[Direction | None] = None

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

    def __init_subclass__(cls) -> None:
        namesake = cls.kinds.get(cls.__name__)
        if namesake is not None and _is_shipped(namesake) and not _is_shipped(cls):
            raise TypeError(
                f"fedsim has a step of the class name {cls.__name__!r}, by which a checkpoint saves "
                "it; give yours another name"
            )
        cls.kinds[cls.__name__] = cls
        name = cls.__dict__.get("name")
        names = (name,) if isinstance(name, str) else cls.names
        if cls.power is not None:
            cls.powers.update(dict.fromkeys(names, cls.power))

    def begin(self, task: "Task", runner: "TaskRunner") -> None:
        """Begin the step now, and arrange that ``task.carried_out`` is called at its end.

        Args:
            task: the task whose running step this is.
            runner: the services of the world: ``end_step_at``, ``network``, ``computing``,
                ``charge``, ``population``, ``simulation``.
        """
        raise NotImplementedError

    def end(
        self,
        task: "Task",
        runner: "TaskRunner",
        cause: Cause | None,
    ) -> Ending:
        """End the step now.

        Args:
            task: the task whose running step this is.
            runner: the services of the world, as in ``begin``.
            cause: the cause of an early end; None if the step was carried out.

        Returns:
            The cause with which the task ends (None: the task goes on), and fields of the record
            ``step-end`` beside ``step`` and ``outcome``.
        """
        return cause, {}

    def is_due(self, task: "Task", runner: "TaskRunner") -> bool:
        """Whether the running step is carried out by now, but for the rounding of times."""
        alarm = task.alarm
        if alarm is None or alarm.name[0] != "step" or task.fails:
            return False
        now = runner.simulation.now
        return alarm.when <= now + tie_s(now)


def _is_shipped(cls: type) -> bool:
    return cls.__module__.startswith("fedsim.")
