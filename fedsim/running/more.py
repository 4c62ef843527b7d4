"""Continuing a finished run for more rounds, or for more simulated time.

The run is resumed from a checkpoint that was saved before its end. So the result equals the result
of a run with the new end, unless the strategy depends on the planned count of rounds.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsim.common.errors import CheckpointError, RunFolderError, ScenarioError, home_of, show_value
from fedsim.common.files import read_toml
from fedsim.common.former_keys import understand
from fedsim.common.units import Seconds, read_quantity
from fedsim.records import folder as files
from fedsim.running.checkpoint import store

if TYPE_CHECKING:
    from fedsim.running.assembly import Run
    from fedsim.running.scenario import Scenario


class Extension(NamedTuple):
    """Amount by which a finished run is continued (``fedsim run --more``): rounds or time.

    Attributes:
        rounds: count of additional rounds; None if the amount is a time.
        seconds: additional simulated time (s); None if the amount is a count of rounds.
    """

    rounds: int | None
    seconds: float | None

    @classmethod
    def read(cls, value: int | str) -> "Extension":
        """Parse the value of ``--more``: a count of rounds, or a time such as ``2 h``.

        Args:
            value: the count as a number or text, or the time as text.

        Raises:
            ScenarioError: the value is neither a count of at least 1 nor a time above 0.
        """
        text = str(value).strip()
        if text.isascii() and text.isdecimal() and int(text) >= 1:
            return cls(rounds=int(text), seconds=None)
        is_number = text.lstrip("+-").isdecimal()  # True also for "0" and "-3"
        if isinstance(value, str) and not is_number:
            seconds = read_quantity("--more", text, Seconds)
            if seconds > 0:
                return cls(rounds=None, seconds=seconds)
        raise ScenarioError(
            f"--more is {show_value(value)}; allowed is a count of rounds, 1 or more, or a time such as "
            "'2 h'"
        )

    @property
    def _kind(self) -> str:
        """Kind of the amount for messages: ``rounds`` or ``a time``."""
        return "a time" if self.rounds is None else "rounds"

    def lengthen(self, scenario: "Scenario") -> "Scenario":
        """Return a scenario whose end (``[stop]``) is later by this amount.

        Args:
            scenario: the scenario of the finished run.

        Raises:
            ScenarioError: the amount is in rounds and the scenario has no ``stop.rounds``, or it is
                a time and the scenario has no ``stop.simulated_time``.
        """
        stop = scenario.stop
        changes: dict[str, object] = {}
        if self.rounds is not None and stop.rounds is not None:
            changes["rounds"] = stop.rounds + self.rounds
        elif self.seconds is not None and stop.simulated_time is not None:
            changes["simulated_time"] = stop.simulated_time + self.seconds
        else:
            key = "simulated_time" if self.rounds is None else "rounds"
            raise ScenarioError(
                f"--more gives {self._kind}, and the run has no stop.{key}; allowed is more of "
                "what it has"
            )
        return scenario.model_copy(update={"stop": stop.model_copy(update=changes)})

    def check_folder(self, folder: Path, scenario: "Scenario") -> None:
        """Check that a folder has a finished run, which can be continued by this amount.

        Args:
            folder: the run folder.
            scenario: the scenario that the run must have.

        Raises:
            RunFolderError: the folder has no finished run of the scenario, or the run did not end
                at the limit that this amount moves. A count of rounds moves ``stop.rounds``, and a
                time moves ``stop.simulated_time``.
        """
        files.refuse_other_scenario(folder, scenario.to_toml())
        if files.summarised_status(folder) != "done":
            raise RunFolderError(
                f"--out {str(folder)!r} holds a run that is not done; --resume alone goes on with "
                "it, and --more afterwards"
            )
        stopped = files.summarised(folder, "stopped")
        ended_by_rounds = stopped == f"{scenario.stop.rounds} rounds"
        ended_by_time = stopped == "simulated time"
        moves_end = ended_by_time if self.rounds is None else ended_by_rounds
        if moves_end:
            return
        hint = "--more cannot move that end"
        if ended_by_rounds:
            hint = "give rounds"
        elif ended_by_time:
            hint = "give a time such as '2 h'"
        raise RunFolderError(
            f"--out {str(folder)!r} holds a run that ended as {stopped!r}, and --more gives "
            f"{self._kind}; {hint}"
        )


def refuse_former(folder: Path) -> None:
    """Check that a run that is to be resumed was not written by an earlier version of fedsim.

    Args:
        folder: the run folder; files may be missing.

    Raises:
        CheckpointError: the newest checkpoint has another format, or the scenario has former keys.
    """
    checkpoints = store.list_checkpoints(folder)
    if checkpoints:
        store.refuse_other_format(checkpoints[-1])
        return
    try:
        tables = read_toml(folder / files.SCENARIO)
    except (OSError, ValueError):
        return
    if understand(tables).is_former:
        raise CheckpointError(
            f"{str(folder)!r} holds a run of an earlier version, which had other checkpoints: resume "
            "with the fedsim that wrote it, or run the scenario again, with another --out"
        )


def find_checkpoint(folder: Path) -> Path:
    """Return the newest checkpoint of a finished run that was taken before the run's end.

    Args:
        folder: the run folder.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: there is no such checkpoint, or the run has removed the files with parts of
            its tables, which a continued run needs.
    """
    # a finished run without ``checkpoint.last`` has removed the part files of its tables
    has_parts = any(folder.glob("events.part-*.parquet"))
    checkpoints = store.list_checkpoints(folder) if has_parts else []
    for checkpoint in reversed(checkpoints):  # the newest first
        has_ended = store.read(checkpoint).tree["root"]["stopped"] is not None
        if not has_ended:
            return checkpoint
    raise CheckpointError(
        f"{str(folder)!r} was not saved before its end, so it cannot go on from there; a run with "
        "checkpoint.last = true can. Run the scenario again with a later end and another --out "
        "(--set stop.rounds=... or stop.simulated_time=...): one seed gives the same rounds again"
    )


def refuse_dependent(run: "Run", planned: int | None) -> str | None:
    """Refuse to continue a finished run whose strategy depends on the planned count of rounds.

    Args:
        run: the run with the later end, restored to a checkpoint before its first end.
        planned: count of rounds that was planned at first; None if no count was planned.

    Returns:
        A note for the user if the strategy is not fedsim's, as its code may read the planned count;
        otherwise None.

    Raises:
        CheckpointError: the strategy has used the planned count, such as for a schedule.
    """
    if planned is None:
        return None
    strategy = run.strategy
    # why the strategy depends on the planned count; None if it does not
    reason = strategy.why_not_more(planned)
    kind = run.scenario.strategy.kind
    if reason is not None:
        raise CheckpointError(
            f"the run cannot go on beyond its {planned} rounds: strategy.kind is {kind!r}, and "
            f"{reason}; run the scenario again with more rounds, and another --out"
        )
    home = home_of(type(strategy))  # file and line of a user's strategy
    if not home:
        return None
    return (
        f"strategy.kind is {kind!r}{home}: if it reads 'planned_rounds', the result is not the one "
        "of a run that was planned with as many rounds"
    )
