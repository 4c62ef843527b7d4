"""Fingerprints of a run's data and input files, by which a resumed run notices their changes."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.errors import CheckpointError
from fedsim.common.files import find_file, read_bytes
from fedsim.common.spec import Spec

if TYPE_CHECKING:
    from fedsim.learning.data.federated import FederatedData
    from fedsim.running.assembly import Run


class Origins:
    """Fingerprints of the data and input files from which a run was built.

    A resumed run reads the files again, and the fingerprints show whether the files have changed.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run
        scenario = run.scenario
        sections: dict[str, Spec] = {"population": scenario.population, "network": scenario.network}
        if scenario.learning == "on":
            sections["model"] = scenario.model
        root = scenario.data.own_folder()
        self._file_hashes: dict[str, str] = {}
        for section, spec in sections.items():
            for key, file in _named_files(section, spec):
                self._file_hashes[key] = _hash_files(find_file(file, root))

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 digests of the initial data of all devices and of each input file.

        The digest of the data has the key ``data``. The digest of a file has the dotted key of the
        scenario's table that names the file, such as ``population.availability``. If the run reads
        no data, the entry ``data`` is a text with the model's sizes instead.
        """
        learner = self._run.learner
        data = self._run.data
        of_data = f"{learner.parameters} parameters, {learner.flops_per_sample} FLOPs"
        if data is not None:
            of_data = _hash_data(data)
        return {"data": of_data, **self._file_hashes}

    def refuse_changes(self, saved: Mapping[str, str]) -> None:
        """Raise ``CheckpointError`` if data or files have changed since a checkpoint.

        Args:
            saved: the fingerprints at the checkpoint.
        """
        present = self.fingerprints
        sections = sorted(present.keys() | saved.keys())
        changed = [section for section in sections if present.get(section) != saved.get(section)]
        if changed:
            raise CheckpointError(
                f"what the files of [{'] and ['.join(changed)}] hold has changed since the "
                "checkpoint was taken: the run would go on as another one; put the old files back "
                "to resume it, or run the scenario again, with another --out"
            )


def _hash_files(path: Path) -> str:
    """Return the SHA-256 digest of a file, or of the names and contents of a folder's files."""
    if not path.is_dir():
        return hashlib.sha256(read_bytes(path)).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            content = hashlib.sha256(read_bytes(file)).hexdigest()
            digest.update(f"{file.relative_to(path).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _hash_data(data: "FederatedData") -> str:
    """Return the SHA-256 digest of all samples and of the devices' shards before any shift."""
    digest = hashlib.sha256()

    def add(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> None:
        if array is None:
            digest.update(b"none\n")
        else:
            digest.update(f"{array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    add(data.pool.x)
    add(data.pool.y)
    if data.pool.targets is not None:
        add(data.pool.targets)
    for shard in data.shards:
        add(shard.train)
        add(shard.test)
        add(shard.label_map)
        digest.update(f"{shard.quarter_turns} {shard.augment_seed}\n".encode())
    return digest.hexdigest()


def _named_files(key: str, spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield each file that a table of a scenario names with a key ``file``, also in nested tables.

    Args:
        key: dotted key of the table, such as ``population.availability``.
        spec: the table.

    Yields:
        Dotted key of the table that names the file, and the file's path.
    """
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _named_files(f"{key}.{name}", value)
        elif name == "file" and value is not None:
            yield key, value
