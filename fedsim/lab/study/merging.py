"""Merging of folders of the same study, each with a share of its runs, into one folder."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.common.errors import RunFolderError, ScenarioError
from fedsim.common.files import read_bytes
from fedsim.lab.compare.show import write_tables
from fedsim.lab.reading.study_folder import INDEX, PUBLISHED, STUDY, is_done, read_index
from fedsim.lab.study.folder import claimed, locked, refuse_unusable
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder

_REPEATABLE = ("events", "events_sha256", "models_sha256", "bytes", "accuracy")
"""Entries of a summary that are equal in all runs of the same scenario."""


@dataclass
class Merged:
    """Result of ``merge``: lists of run folders, as paths relative to the study's folder.

    Attributes:
        copied: finished runs that were copied from a source.
        present: finished runs that were in the target before the merge.
        repeated: runs that at least two sources had, not counting the target if it is a source. All
            their results were equal.
        missing: runs that are finished neither in a source nor in the target.
    """

    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def merge(sources: Sequence[str | Path], out: str | Path) -> Merged:
    """Merge folders of the same study into one, and write the study's tables there.

    Finished runs are copied. Runs that are done in several folders must have equal events, models
    and bytes. Unfinished runs are not copied.

    Args:
        sources: folders of the study, as ``fedsim study STUDY --shard K/N --out DIR`` wrote them.
        out: the merged folder. It may be new, of an earlier merge, or one of the sources.

    Returns:
        Lists of run folders: copied, present before, found in several sources, and missing.

    Raises:
        RunFolderError: a folder is no study's, the folders are of different studies, a run is
            done twice with different results, or a folder cannot be read or written. Runs that
            were copied before stay in ``out``.
    """
    # lists each folder once, even if it is given by several paths
    study_folders = list({Path(source).resolve(): Path(source) for source in sources}.values())
    target = Path(out)
    if not study_folders:
        raise ScenarioError("there is no folder to merge; name one at least")
    compared = [*study_folders]
    if (target / STUDY).is_file():
        compared.append(target)
    _refuse_other_studies(compared)
    refuse_unusable(target)
    merged = Merged()
    with locked(target):
        for name in (STUDY, INDEX, PUBLISHED):
            if (study_folders[0] / name).is_file():
                files.write_text(target / name, read_bytes(study_folders[0] / name).decode())
        for folder in _list_run_folders(study_folders[0]):
            _merge_run(folder, study_folders, target, merged)
        write_tables(target)
    return merged


def _refuse_other_studies(study_folders: Sequence[Path]) -> None:
    first = study_folders[0]
    texts = [_read_study_file(study_folder) for study_folder in study_folders]
    for study_folder, text in zip(study_folders, texts, strict=True):
        read_index(study_folder)  # raises if the folder has no index
        if text != texts[0]:
            raise RunFolderError(
                f"{str(study_folder)!r} and {str(first)!r} are folders of different studies: their "
                f"{STUDY} differ; merge folders of one study, with the same --set, --size and "
                "--seeds"
            )


def _read_study_file(study_folder: Path) -> bytes:
    try:
        return read_bytes(study_folder / STUDY)
    except OSError as error:
        raise RunFolderError(
            f"{str(study_folder)!r} is no study's folder: {STUDY} cannot be read ({error.strerror})"
        ) from None


def _list_run_folders(study_folder: Path) -> list[str]:
    """Return the distinct run folders of a study, in the order of its index.

    Args:
        study_folder: the study's folder.
    """
    index = read_index(study_folder)
    runs = [run.folder for variant in index.variants for run in variant.runs]
    return list(dict.fromkeys(runs))


def _merge_run(folder: str, study_folders: Sequence[Path], target: Path, merged: Merged) -> None:
    """Copy a finished run to the merged study, or check that its run there has equal results.

    Args:
        folder: the run folder, relative to a study's folder.
        study_folders: the folders to merge.
        target: the merged folder.
        merged: result of the merge so far, to whose lists the run's folder is added.

    Raises:
        RunFolderError: folders have the run with different results, or it cannot be copied.
    """
    finished = [study_folder for study_folder in study_folders if is_done(study_folder / folder)]
    destination = target / folder
    if is_done(destination):
        merged.present.append(folder)
    elif not finished:
        merged.missing.append(folder)
        return
    else:
        _copy(finished[0] / folder, destination)
        merged.copied.append(folder)
    results = _read_results(destination)
    # sources that have finished the run, without the target if it is itself a source
    other_folders = [
        study_folder
        for study_folder in finished
        if (study_folder / folder).resolve() != destination.resolve()
    ]
    for study_folder in other_folders:
        _refuse_other_results(study_folder / folder, destination, results)
    # a single source is the one from which the run was copied, now or by an earlier merge
    if len(other_folders) > 1:
        merged.repeated.append(folder)


def _copy(source: Path, destination: Path) -> None:
    """Copy the folder of a finished run.

    It is copied under another name first, so that an interrupted copy leaves no run folder.

    Raises:
        RunFolderError: ``destination`` has an unfinished run, or the folder cannot be copied.
    """
    with claimed(destination):
        if destination.exists() and not files.holds_nothing(destination):
            raise RunFolderError(
                f"{str(destination)!r} holds an unfinished run; end it there, or remove it"
            )
        partial_copy = destination.with_name(f".{destination.name}.part")
        shutil.rmtree(partial_copy, ignore_errors=True)
        try:
            shutil.copytree(source, partial_copy, symlinks=True)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(partial_copy, ignore_errors=True)
            raise RunFolderError(
                f"{str(source)!r} cannot be copied to {str(destination)!r}: {error}"
            ) from None
        if destination.exists():
            shutil.rmtree(destination)
        partial_copy.rename(destination)


def _read_results(folder: Path) -> Mapping[str, object]:
    summary = RunFolder(folder).summary
    return {key: summary.get(key) for key in _REPEATABLE}


def _refuse_other_results(
    folder: Path, reference: Path, reference_results: Mapping[str, object]
) -> None:
    own_results = _read_results(folder)
    for key in _REPEATABLE:
        if own_results[key] != reference_results[key]:
            raise RunFolderError(
                f"{str(folder)!r} and {str(reference)!r} are runs of one scenario, but their "
                f"{key} differ; 'fedsim audit' says which is damaged"
            )
