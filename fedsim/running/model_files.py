"""The models of a run as tensors, as its model files have them.

The models of a family share one file, in which tensors are named ``index/tensor``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsim.common.arrays import AnyArray
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.running.assembly import Run

Models = dict[str, dict[str, AnyArray]]
"""Models by file name; each model is its tensors by name."""


async def last_models(run: "Run") -> Models:
    """Return the strategy's current models.

    Args:
        run: the run.
    """
    files = {name: dict(tensors) for name, tensors in run.strategy.tensors().items()}
    if run.learner.learns:
        models = {name: model for name, (model, _) in run.strategy.models().items()}
        await _add(files, run, models)
    return files


async def best_models(run: "Run") -> Models:
    """Return the models of the best test; empty unless ``evaluation.keep_best`` is true.

    Args:
        run: the run.
    """
    files: Models = {}
    await _add(files, run, run.evaluator.ending.progress.models)
    return files


async def _add(files: Models, run: "Run", models: Mapping[str, Ref]) -> None:
    learner = run.learner
    for name, model in models.items():
        family, _, member = name.partition("/")
        tensors = learner.tensors(await learner.value(model))
        prefix = f"{member}/" if member else ""
        for tensor, values in tensors.items():
            files.setdefault(family, {})[f"{prefix}{tensor}"] = values
