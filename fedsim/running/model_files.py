"""The models of a run as named tensors, to be written to files in the run folder.

A model named ``file/index``, such as the model of a cluster, shares the file ``file`` with other
models, and its tensors are named ``index/tensor`` there. The weights of a model are read when the
model's tensors are written, so that one model is in memory at a time.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.tensor_files import AnyTensor, StoredTensor, array_of
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.learning.learner import Learner
    from fedsim.running.assembly import Run

Models = dict[str, dict[str, AnyTensor]]
"""Models by file name; each model is its tensors by name."""


class _ModelReader:
    """Reader of single tensors of computed models; only the model read last is in memory.

    Args:
        learner: splits the weights of a model into tensors.
    """

    def __init__(self, learner: "Learner") -> None:
        self._learner = learner
        self._last: Ref | None = None
        self._tensors: Mapping[str, AnyArray] = {}

    def read(self, model: Ref, tensor: str) -> AnyArray:
        """Return the tensor of a model with the name ``tensor``."""
        if model is not self._last:
            self._tensors = {}  # frees the weights before the next ones are read
            weights = model.value
            assert weights is not None, f"{model} has no value"
            self._tensors = self._learner.tensors(weights)
            self._last = model
        return self._tensors[tensor]


class _ModelTensor(StoredTensor):
    """Tensor of a computed model, whose elements are read when they are needed.

    Args:
        reader: reads the tensor.
        model: the model.
        tensor: name of the tensor.
        shape: its shape.
    """

    __slots__ = ("_reader", "_tensor", "model")

    def __init__(
        self, reader: _ModelReader, model: Ref, tensor: str, shape: tuple[int, ...]
    ) -> None:
        super().__init__(np.dtype(np.float32), shape)
        self._reader = reader
        self._tensor = tensor
        self.model = model

    def read(self) -> AnyArray:
        return self._reader.read(self.model, self._tensor)


async def last_models(run: "Run") -> Models:
    """Compute the strategy's current models, and return them as tensors to be written to files.

    Args:
        run: the run.

    Returns:
        Name of a file -> its tensors by name. The tensors' values may be on disk until the file is
        written.
    """
    files: Models = {name: dict(tensors) for name, tensors in run.strategy.tensors().items()}
    if run.learner.learns:
        models = {name: model for name, (model, _) in run.strategy.models().items()}
        await _add_models(files, run, models)
    return files


async def best_models(run: "Run") -> Models:
    """Return the models that had the best test of the run, to be written to files.

    The best test is the one with the best value of ``stop.monitor`` (such as the accuracy).

    Args:
        run: the run.

    Returns:
        Name of a file -> its tensors by name; empty unless ``evaluation.keep_best`` is true.
    """
    files: Models = {}
    await _add_models(files, run, run.ending.progress.models)
    return files


async def _add_models(files: Models, run: "Run", models: Mapping[str, Ref]) -> None:
    """Compute models, and add their tensors to ``files``.

    Args:
        files: file name -> tensors by name.
        run: the run.
        models: the models by name. Models named ``file/index`` share a file, in which their
            tensors are named ``index/tensor``.
    """
    learner = run.learner
    reader = _ModelReader(learner)
    for name, model in models.items():
        await learner.compute([model])
        file, _, index = name.partition("/")
        prefix = f"{index}/" if index else ""
        tensors_of_file = files.setdefault(file, {})
        for tensor, shape in learner.shapes.items():
            tensors_of_file[prefix + tensor] = _ModelTensor(reader, model, tensor, shape)


def find_not_finite(models: Models) -> Iterator[str]:
    """Yield the names of files with models of which a weight is infinite or NaN.

    Args:
        models: file name -> tensors by name. Weights on disk are not read, as each model stores
            whether it is finite.
    """
    for name, tensors in models.items():
        if not all(map(_is_finite, tensors.values())):
            yield name


def _is_finite(tensor: AnyTensor) -> bool:
    if isinstance(tensor, _ModelTensor):
        return tensor.model.finite
    return bool((abs(array_of(tensor)) < inf).all())
