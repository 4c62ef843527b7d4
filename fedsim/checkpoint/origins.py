"""Inputs of a run beside its scenario: data and traces, from files that may change while the run is stopped.

A run reads all of them once, when it is built. One that is resumed reads them again, so a checkpoint keeps their fingerprints.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedsim.errors import CheckpointError
from fedsim.files import sought
from fedsim.language.spec import Spec

if TYPE_CHECKING:
    from fedsim.data.federated import FederatedData
    from fedsim.running.assembly import Run


class Origins:
    """Fingerprints of the inputs of a run that has just been built."""

    def __init__(self, run: "Run") -> None:
        self._run, scenario = run, run.scenario
        sections: dict[str, Spec] = {"population": scenario.population, "network": scenario.network}
        if scenario.learning == "on":
            sections["model"] = scenario.model
        root = scenario.data.own_folder()
        files = {key: sought(file, root) for section, spec in sections.items() for key, file in _files(section, spec)}
        self._of_files = {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items()}

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of each section of the scenario that names files, and of the devices' first data: one that others do not have."""
        learner, data = self._run.learner, self._run.data
        shape = f"{learner.parameters} parameters, {learner.flops_per_sample} FLOPs"  # no samples, but their shape and classes
        return {"data": shape if data is None else _data(data)} | self._of_files

    def refuse_others(self, then: Mapping[str, str]) -> None:
        """See whether all is as it was when a checkpoint was taken; ``CheckpointError`` names what is not."""
        now = self.fingerprints
        changed = [section for section in sorted(now.keys() | then.keys()) if now.get(section) != then.get(section)]
        if changed:
            raise CheckpointError(
                f"what the files of [{'] and ['.join(changed)}] hold has changed since the checkpoint was taken: the run would "
                "go on as another one; put the old files back to resume it, or run the scenario again, with another --out"
            )


def _data(data: "FederatedData") -> str:
    """Of all samples, and of who held which of them, seen in which way, before any shift."""
    digest = hashlib.sha256()

    def add(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None") -> None:
        if array is None:
            digest.update(b"none\n")
        else:
            digest.update(f"{array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    for part in (data.pool.x, data.pool.y, *([] if data.pool.targets is None else [data.pool.targets])):
        add(part)
    for shard in data.shards:
        for held in (shard.train, shard.test, shard.label_map):
            add(held)
        digest.update(f"{shard.quarter_turns} {shard.augment_seed}\n".encode())
    return digest.hexdigest()


def _files(key: str, spec: Spec) -> Iterator[tuple[str, str]]:
    """Every file that a part of the scenario names, with its key."""
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _files(f"{key}.{name}", value)
        elif name == "file" and value is not None:
            yield key, value
