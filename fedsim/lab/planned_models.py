"""Computation of models without weights, to count the memory and disk that models of a run need.

It takes the steps of a real computation (``learning.computing``), in the same order, and stores the
results in the same storage. Only the weights are missing: a model is a read-only array of zeros
that takes four bytes, whatever size it stands for.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from fedsim.common.tensor_files import AnyTensor
from fedsim.learning.computing import ModelComputing
from fedsim.learning.refs import Applied, Best, Mixed, Ref, Waves
from fedsim.learning.scratch import ComputedWeights, Scratch, Weights
from fedsim.learning.streaming import ModelNode, ResultOf, Stream
from fedsim.running.assembly import Run
from fedsim.running.checkpoint import CheckpointSpec
from fedsim.running.checkpoint.apart import LinkedTensor, LinkedTensors, is_apart
from fedsim.running.checkpoint.codec import Encoder
from fedsim.running.checkpoint.snapshot import Saving, encode_models

_KEPT_SAVES = 2  # checkpoints that a run keeps; while one is written, these and the new one exist


def planned_weights(length: int) -> Weights:
    """Return zeros in place of a model's weights, in four bytes of memory; float32 [length]."""
    return np.broadcast_to(np.float32(0.0), (length,))


class PlannedScratch(Scratch):
    """Storage of models that writes nothing to its file, and counts what it would write."""

    @override
    def _put(self, weights: Weights, offset: int) -> None:
        pass

    @override
    def read(self, offset: int, length: int) -> Weights:
        return planned_weights(length)


class PlannedComputing(ModelComputing):
    """Computation of models with placeholders for weights, to count the memory and disk they need.

    It is used in a trial of a run's beginning, from which the cost of the run is predicted.

    Args:
        parameters: count of weights of a model, d.
        memory_bytes: memory for models (bytes). Models that do not fit are counted as written to
            the temporary file.
        workers: count of workers of the run.

    Attributes:
        scratch: the storage of the placeholders, which knows the greatest size of the temporary
            file.
    """

    def __init__(self, parameters: int, memory_bytes: float, workers: int) -> None:
        self.parameters = parameters
        self.memory_bytes = memory_bytes
        self.workers = workers
        self.scratch = PlannedScratch(memory_bytes)
        # ``__init__`` of the base class is not called, as it needs data and workers
        self._records = None

    @property
    @override
    def at_once(self) -> int:
        return 1

    @override
    async def compute(self, targets: Iterable[Ref], *, stay: bool = True) -> None:
        models = list(targets)
        waves = Waves(models)
        if self.has_room(len(waves)):
            await self._compute_waves(waves)
            return
        del waves  # otherwise it would keep all models referenced
        await PlannedStream(self, self.scratch).compute(models, stay=stay)

    @override
    async def _compute_waves(self, waves: Waves) -> None:
        for wave in waves:
            recipes = [ref.recipe for ref in wave]
            for ref in wave:
                self.finish(ref, None)
            self._hold(wave, recipes)

    @override
    def begin(self, refs: Sequence[Ref]) -> "list[ResultOf | Weights | ComputedWeights]":
        return [planned_weights(0)] * len(refs)  # ignored by ``finish``, which makes the weights

    @override
    def finish(self, ref: Ref, result: object) -> None:
        recipe = ref.recipe  # how the model would be computed; ``result`` is ignored
        length = self.parameters
        if isinstance(recipe, Applied) and recipe.size is not None:
            length = recipe.size  # size of a result that is no model
        if isinstance(recipe, Best):
            # the best model depends on data; here the choices spread evenly over the models
            ref.choice = (ref.device or 0) % len(recipe.models)
            ref.held = recipe.models[ref.choice].held
        else:
            ref.held = planned_weights(length)
        ref.finite = True
        ref.recipe = None


class PlannedStream(Stream):
    """Computation of models one by one without weights, as by a run whose memory is too small.

    Where a run adds up the weights of models for a weighted sum, this class adds nothing.
    """

    @override
    def _add_part(self, node: ModelNode, position: int, sums: object) -> None:
        recipe = node.recipe
        assert isinstance(recipe, Mixed)
        part, _ = recipe.parts[position]
        self._note_use(part)

    @override
    async def _finish_mix(self, node: ModelNode, recipe: Mixed, mix: object) -> None:
        self._calculator.finish(node, None)
        self._publish(node, recipe)
        if recipe.otherwise is not None:
            self._note_use(recipe.otherwise)


class CheckpointedModels(NamedTuple):
    """Count and size of the models that a checkpoint of a run would contain at an instant.

    They are counted in a trial of a run's beginning, to predict how they grow with the count of
    trained devices.

    Attributes:
        trained: count of the devices that had been trained.
        bytes: size of the computed models in a checkpoint (bytes).
        refs: count of models, including models whose computation is deferred.
    """

    trained: int
    bytes: float
    refs: int

    @classmethod
    def of(cls, run: Run, trained: int) -> "CheckpointedModels":
        """Return count and size of the models that a checkpoint of a run would contain now.

        The run must have handled all events of the present simulated time.

        Args:
            run: the run.
            trained: count of the devices that have been trained so far, for the attribute
                ``trained``.
        """
        encoder, _ = encode_models(run)
        size = float(sum(array.nbytes for array in encoder.arrays.values()))
        refs = sum(isinstance(value, Ref) for value in encoder.objects)
        return cls(trained, size, refs)


class PlannedSaving(Saving):
    """Counts the size of the checkpoints of a run without writing them.

    It is used in a trial of the run's beginning, from which the cost of the run is predicted.

    Args:
        spec: ``[checkpoint]`` of the scenario.
        run: the run of the trial.

    Attributes:
        links: counts the sizes of the checkpoints.
    """

    def __init__(self, spec: CheckpointSpec, run: Run) -> None:
        self.links = PlannedLinks()
        super().__init__(spec, run)

    @override
    def _save(self) -> None:
        self._run.learner.free_derived()
        encoder, tables = encode_models(self._run)
        self.links.save(encoder, len(json.dumps(tables, separators=(",", ":"))))


class PlannedLinks(LinkedTensors):
    """Counter of the file sizes that checkpoints would have, for a forecast that writes none.

    Each large array has a file of its own. Checkpoints share the file of an array that has not
    changed in between, by hard links.

    Attributes:
        peak_bytes: greatest size of all checkpoints at a time (bytes).
        end_bytes: size of the checkpoints that are kept now (bytes).
        saves: count of checkpoints so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0.0
        self.end_bytes = 0.0
        self.saves = 0
        # for each checkpoint on disk: files of large arrays, and the size of all else (bytes)
        self._saves: list[tuple[set[LinkedTensor], float]] = []

    @override
    def write(self, path: Path, tensor: AnyTensor) -> str:
        return ""

    def save(self, encoder: Encoder, tables_bytes: int) -> None:
        """Count the size of a checkpoint, and free its models from the temporary file.

        The temporary file has the models that do not fit into memory. After a checkpoint, a run
        reads such models from the checkpoint instead.

        Args:
            encoder: encoder that has encoded the checkpoint, with its arrays.
            tables_bytes: size of the checkpoint's tables, which have all but the arrays (bytes).
        """
        files = set[LinkedTensor]()
        small_bytes = float(tables_bytes)
        self.saves += 1
        path = Path(f"{self.saves:06d}")
        for name, array in encoder.arrays.items():
            if is_apart(array):  # large enough for a file of its own
                self.add_written(path / name, array, "")
                # the array's file, which an earlier checkpoint may share
                files.add(self.newest[id(array)])
            else:
                small_bytes += array.nbytes
        # a run removes the oldest checkpoint only after it has written the new one
        earlier_saves = self._saves[-_KEPT_SAVES:]
        self._saves = [*earlier_saves, (files, small_bytes)]
        self.peak_bytes = max(self.peak_bytes, _distinct_bytes(self._saves))
        self.end_bytes = _distinct_bytes(self._saves[-_KEPT_SAVES:])
        self.replace_written(encoder)


def _distinct_bytes(saves: "Sequence[tuple[set[LinkedTensor], float]]") -> float:
    """Return the size of several checkpoints together (bytes); a file that they share counts once.

    Args:
        saves: for each checkpoint, its files of large arrays and the size of all else (bytes).
    """
    files = set[LinkedTensor]().union(*(of_save for of_save, _ in saves))
    return float(sum(file.nbytes for file in files)) + sum(small for _, small in saves)
