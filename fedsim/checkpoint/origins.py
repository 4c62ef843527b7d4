"""Inputs of a run beside its scenario: data and traces, from files that may change while the run is stopped.

A run reads all of them once, when it is built. One that is resumed reads them again, so a checkpoint keeps their fingerprints.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import CheckpointError
from fedsim.files import sought
from fedsim.language.spec import Spec

if TYPE_CHECKING:
    from fedsim.data.federated import FederatedData
    from fedsim.learning import Learner
    from fedsim.running.assembly import Run
    from fedsim.sections import Sections

Fingerprints = dict[str, str]
"""Section of the scenario -> what tells its files' content from any other, usually a sha256."""


class Origins:
    """The fingerprints of a run that has just been built; those of its samples are computed when they are first asked for."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._traces = _traces(run.scenario)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """Of the devices' first data, and of every file that describes the world."""
        run = self._run
        return {"data": _shape(run.learner) if run.data is None else _data(run.data)} | self._traces

    def refuse_others(self, then: Fingerprints) -> None:
        """See whether all is as it was when a checkpoint was taken.

        Raises:
            CheckpointError: names what is not.
        """
        now = self.fingerprints
        changed = [section for section in sorted(now.keys() | then.keys()) if now.get(section) != then.get(section)]
        if changed:
            raise CheckpointError(
                f"what the files of [{'] and ['.join(changed)}] hold has changed since the checkpoint was taken: the run would "
                "go on as another one; put the old files back to resume it, or run the scenario again, with another --out"
            )


def _shape(learner: "Learner") -> str:
    """Of a run that needs no samples: size and cost of the model, which follow from their shape and classes."""
    return f"{learner.parameters} parameters, {learner.flops_per_sample} FLOPs"


def _data(data: "FederatedData") -> str:
    """Of all samples, and of who held which of them, seen in which way, before any shift."""
    digest = hashlib.sha256()
    _add(digest, data.pool.x, data.pool.y, *([] if data.pool.targets is None else [data.pool.targets]))
    for shard in data.shards:
        _add(digest, shard.train, shard.test, shard.label_map)
        digest.update(f"{shard.quarter_turns} {shard.augment_seed}\n".encode())
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *arrays: NDArray[Any] | None) -> None:
    for array in arrays:
        if array is None:
            digest.update(b"none\n")
        else:
            digest.update(f"{array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _traces(scenario: "Sections") -> Fingerprints:
    """Of the files that the world and the model are described by; they have just been read."""
    root = scenario.data.own_folder()
    sections: dict[str, Spec] = {"population": scenario.population, "network": scenario.network}
    if scenario.learning == "on":
        sections["model"] = scenario.model
    files = {key: sought(file, root) for section, spec in sections.items() for key, file in _files(section, spec)}
    return {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items()}


def _files(key: str, spec: Spec) -> Iterator[tuple[str, str]]:
    """Every file that a part of the scenario names, with its key."""
    for name, value in spec:
        if isinstance(value, Spec):
            yield from _files(f"{key}.{name}", value)
        elif name == "file" and value is not None:
            yield key, value
