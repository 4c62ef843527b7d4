"""Search that several processes carry out in one folder.

A process takes as many trials as it has workers, carries out their runs, writes their results into
a common file (``journal``), and takes the next trials. The values of a trial are proposed from the
results that exist at that time, so they depend on the speed of the processes. In a search by one
process, the values do not depend on speed.

A process holds a lock for each of its trials. If it is killed, another process takes the trial, and
resumes its runs from their checkpoints.
"""

from contextlib import ExitStack
from pathlib import Path

from typing_extensions import override

from fedsim.common.errors import ScenarioError
from fedsim.lab.reading.study_folder import INDEX
from fedsim.lab.study import folder as files
from fedsim.lab.study.journal import JOURNAL, Journal
from fedsim.lab.study.plan import Study, plan_run
from fedsim.lab.study.search import Search, import_optuna
from fedsim.lab.study.shards import StudyShard
from fedsim.lab.study.trials import Build, SearchedVariant, Trial, Trials, are_over
from fedsim.records import lock

_UNREPEATABLE = (
    "processes share this search: which values are tried depends on which trials were over when "
    "each began, so another search may try others; each run can be repeated"
)


def make_trials(study: Study, out: Path, shard: StudyShard | None, workers: int) -> Trials | None:
    """Return the object that plans the trials of a study's search; None if the study has no search.

    It is a ``SharedTrials`` if several processes share a search whose trials follow from results.

    Args:
        study: the planned study.
        out: folder of the study.
        shard: share of the study that this process carries out; None for all.
        workers: count of trials that this process carries out at a time, if it shares the search.

    Raises:
        ScenarioError: the study has shards, and its search stops bad trials early, or was begun
            without shards, by a single process.
    """
    search = study.spec.search
    if search is None:
        return None
    # Three cases: one process searches; several processes share trials that do not depend on
    # results, so that each process can plan all of them; or several processes share trials that
    # follow from results, through a journal. The index is looked for before the journal, because
    # processes that share a search write the journal first. So an index without a journal is from a
    # search in one process.
    is_begun = (out / INDEX).is_file()
    is_shared = (out / JOURNAL).is_file()
    if shard is None and not is_shared:
        return Trials(study, search)
    if search.prune:
        raise ScenarioError(
            f"--shard is '{shard}', but search.prune is true: trials are pruned by comparison with "
            "all others, which one process does"
        )
    if search.is_planned_ahead:
        return Trials(study, search)
    if not is_shared and is_begun:
        raise ScenarioError(
            f"--shard is '{shard}', but one process began the search in {str(out)!r}; go on "
            "without --shard, or give another folder"
        )
    return SharedTrials(study, search, workers)


class SharedTrials(Trials):
    """Plans the trials of a search that several processes carry out together.

    A trial is a variant with certain values of the searched keys. The processes exchange trials and
    results through a journal file in the study's folder. Each process claims the trials that it
    carries out: it locks each of them.

    Args:
        study: the study, to which the trials of all processes are added.
        search: the search of the study.
        workers: count of trials that this process carries out at a time.
    """

    def __init__(self, study: Study, search: Search, workers: int) -> None:
        super().__init__(study, search)
        self._workers = workers
        self._claims = ExitStack()  # locks of the trials in ``_batch``, which this process runs
        import_optuna()  # slow; a later import would be while this process holds a lock

    @property
    @override
    def is_over(self) -> bool:
        for line in self.lines:
            if len(line.trials) < self.search.trials:
                return False
            if any(trial.state == "open" for trial in line.trials):
                return False
        return True

    @override
    def runs_of_others(self) -> set[Path]:
        planned: set[Path] = set()
        for line in self.lines:
            for trial in line.trials:
                runs = self.study.runs_of.get(trial.variant.folder, [])
                planned.update(run.folder for run in runs)
        claimed: set[Path] = set()  # folders of the runs of trials that this process has locked
        for trial in self._open:
            claimed.update(run.folder for run in self.study.runs_of[trial.variant.folder])
        return planned - claimed

    @override
    def begin(self, path: Path, try_to_build: Build) -> None:
        if (path / JOURNAL).is_file():
            self.read(path)

    @override
    def read(self, path: Path) -> None:
        self._read_journal(Journal(path, is_maximised=self._is_maximised))

    @override
    def grow(self, path: Path, try_to_build: Build) -> None:
        """Write results of this process's trials into the shared journal, and claim new trials.

        To claim a trial is to lock it, so that no other process carries it out. Trials whose
        process was killed are claimed before new trials. If a run of a claimed trial has no result
        because its worker was lost, the call only releases the locks. The next call claims the
        trials again.
        """
        runs = self._find_unread_runs(path)
        if not are_over(runs):
            self.close()  # a run was lost: the next call claims its trial again
            return
        self._store_results(runs)
        while True:  # repeated until a claimed trial can be run, or no trial is left to claim
            with files.locked(path, files.TURN_S):
                journal = Journal(path, is_maximised=self._is_maximised)
                self._write_results(journal)
                self._read_journal(journal)
                self._claim_trials(path, journal)
            if not self._batch:
                return
            self.batches += 1
            for trial in self._batch:
                self._check_trial(trial, try_to_build)
            if self._open:
                return

    @override
    def close(self) -> None:
        self._claims.close()
        self._batch = []

    @override
    def lines_of_text(self) -> list[str]:
        return [*super().lines_of_text(), _UNREPEATABLE]

    def _read_journal(self, journal: Journal) -> None:
        """Read the trials of all processes from the journal file, and plan the runs of new ones.

        Results of other processes' trials are stored in their ``Trial`` objects.
        """
        for line in self.lines:
            space = self.search.space_of(line.variant.name)
            for trial_number, entry in enumerate(journal.entries(line, space), 1):
                if trial_number > len(line.trials):
                    self._add_trial(line, entry.values)
                trial = line.trials[trial_number - 1]
                is_of_other = trial not in self._batch
                if trial.state == "open" and is_of_other and entry.result:
                    trial.state = entry.result["state"]
                    trial.figures = entry.result["figures"]
                    trial.nearest = entry.result["nearest"]
                    trial.error = entry.result["error"]

    def _add_trial(self, line: SearchedVariant, values: dict[str, object]) -> Trial:
        """Add the next trial of a variant, and plan its runs for all seeds.

        If the trial's scenario is invalid, its state becomes ``refused``, and nothing is planned.

        Args:
            line: the searched variant.
            values: the trial's values by key of the search space.
        """
        trial = Trial.of(line.variant, len(line.trials) + 1, values)
        line.trials.append(trial)
        seeds = self.study.spec.seeds
        try:
            plan_run(trial.variant, self.study.spec, seeds[0])
        except ScenarioError as error:
            trial.state = "refused"
            trial.error = str(error)
        else:
            self.study.add([trial.variant], seeds)
        return trial

    def _write_results(self, journal: Journal) -> None:
        """Write the results of this process's trials into the journal, and release their locks.

        The runs of these trials are over.
        """
        for line in self.lines:
            for trial in line.trials:
                if trial not in self._batch:
                    continue
                if trial.state == "open":
                    trial.state = "done"
                journal.write_result(line, trial)
        self.close()

    def _claim_trials(self, path: Path, journal: Journal) -> None:
        """Lock as many trials as this process has workers, so that no other carries them out.

        First come trials that were proposed but have no result and no process that carries them
        out, then new trials.

        Args:
            path: the study's folder.
            journal: file of the trials of all processes.
        """
        for line in self.lines:
            for trial in line.trials:
                if trial.state == "open" and len(self._batch) < self._workers:
                    self._claim(path, trial)
        for line in self.lines:
            while len(line.trials) < self.search.trials and len(self._batch) < self._workers:
                self._propose_one(path, line, journal)

    def _propose_one(self, path: Path, line: SearchedVariant, journal: Journal) -> None:
        """Propose the next trial of a variant, write it into the journal file, and lock it.

        The lock keeps other processes from the trial. A trial with an invalid scenario is written
        as refused, and not locked.
        """
        space = self.search.space_of(line.variant.name)
        # trials that are not over rank last, so that no other process tries values near them
        results = self._results(line)
        trial = self._add_trial(line, self.search.ask(line.variant.label, space, results, 1)[0])
        journal.add(line, trial, space)
        if trial.state == "refused":
            journal.write_result(line, trial)
        else:
            self._claim(path, trial)

    def _claim(self, path: Path, trial: Trial) -> None:
        """Lock a trial for this process, unless another process has locked it."""
        try:
            self._claims.enter_context(lock.locked(path, name=f".{trial.variant.folder}.lock"))
        except lock.FolderInUseError:
            return
        self._batch.append(trial)

    def _check_trial(self, trial: Trial, try_to_build: Build) -> None:
        try:
            try_to_build(self.study.runs_of[trial.variant.folder][0])
        except ScenarioError as error:
            trial.state = "refused"
            trial.error = str(error)
