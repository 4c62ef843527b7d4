"""Journal of a shared search: a file in the study's folder, in Optuna's format.

In the file, each searched variant is a study of Optuna, so that tools such as Optuna's dashboard
can show it. Every call must be made under the lock of the study's folder.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from fedsim.common.errors import RunFolderError, show_error
from fedsim.lab.study.search import Space, import_optuna
from fedsim.lab.study.trials import SearchedVariant, Trial, TrialState

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

JOURNAL = "search.journal"


class StoredResult(TypedDict):
    """Result of a trial in the journal of a search.

    Attributes:
        state: ``done``, ``pruned`` (stopped early), ``failed`` or ``refused`` (invalid).
        figures: the searched metric of each run, in the order of the seeds; None for a run without
            the metric.
        nearest: best accuracy of each run, which ranks runs that miss a target.
        error: message of the error if the trial is refused.
    """

    state: TrialState
    figures: list[float | None]
    nearest: list[float]
    error: str


class Journal:
    """File in a study's folder in which processes that share a search write trials and results.

    It is in a format of Optuna, and is made if it does not exist. Each call must be made under the
    lock of the study's folder.

    Args:
        path: the study's folder.
        is_maximised: whether greater values of the search's metric are better.

    Raises:
        RunFolderError: the journal cannot be read or written.
    """

    def __init__(self, path: Path, *, is_maximised: bool) -> None:
        optuna = import_optuna()
        optuna.logging.disable_default_handler()
        self._path = path / JOURNAL
        self._direction = optuna.study.StudyDirection.MINIMIZE
        if is_maximised:
            self._direction = optuna.study.StudyDirection.MAXIMIZE
        with self._convert_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            backend = optuna.storages.journal.JournalFileBackend(str(self._path))
            self._storage = optuna.storages.JournalStorage(backend)

    def entries(self, line: SearchedVariant, space: Space) -> list["JournalEntry"]:
        """Return the trials of a variant that any process has written, in their order.

        Args:
            line: the searched variant.
            space: its search space.
        """
        with self._convert_errors():
            trials = self._storage.get_all_trials(self._study_id(line))
            return [JournalEntry(trial, space) for trial in trials]

    def add(self, line: SearchedVariant, trial: Trial, space: Space) -> None:
        """Append a trial that has no result yet to the file.

        Args:
            line: the searched variant.
            trial: the trial, whose index must follow that of the last trial in the file.
            space: the search space of the variant.
        """
        import optuna

        params = {key: space[key].number(value) for key, value in trial.values.items()}
        entry = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=params,
            distributions={key: candidates.distribution for key, candidates in space.items()},
        )
        with self._convert_errors():
            self._storage.create_new_trial(self._study_id(line), entry)

    def write_result(self, line: SearchedVariant, trial: Trial) -> None:
        """Write the result of a trial that is over to the file, and mark the trial as finished.

        Args:
            line: the searched variant.
            trial: the trial with its result.
        """
        from optuna.trial import TrialState as OptunaState

        result = StoredResult(
            state=trial.state,
            figures=trial.figures,
            nearest=trial.nearest,
            error=trial.error,
        )
        with self._convert_errors():
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(
                self._study_id(line), trial.number - 1
            )
            for name, value in result.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            if trial.state == "done" and trial.value is not None:
                self._storage.set_trial_state_values(trial_id, OptunaState.COMPLETE, [trial.value])
            else:
                self._storage.set_trial_state_values(trial_id, OptunaState.FAIL)

    def _study_id(self, line: SearchedVariant) -> int:
        """Return the ID of the Optuna study with a variant's trials, which is made if missing."""
        try:
            study_id: int = self._storage.get_study_id_from_name(line.variant.label)
        except KeyError:
            study_id = self._storage.create_new_study([self._direction], line.variant.label)
        return study_id

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Return a context that turns Optuna's errors into ``RunFolderError`` with the path."""
        try:
            yield
        except (ValueError, KeyError, OSError) as error:
            raise RunFolderError(
                f"{str(self._path)!r} cannot be used as the journal of this search "
                f"({show_error(error)}); give another folder"
            ) from None


class JournalEntry:
    """Trial of a shared search, as read from the journal.

    Attributes:
        values: the trial's values, by searched key of the scenario.
        result: result of the trial; None if it is not over.
    """

    def __init__(self, trial: "FrozenTrial", space: Space) -> None:
        self.values = {key: space[key].scenario_value(trial.params[key]) for key in space}
        self.result: StoredResult | None = None
        if trial.state.is_finished():
            self.result = cast("StoredResult", trial.user_attrs)
