"""Values as JSON trees, whose arrays and models lie beside them in a list."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import SimulationError, shown
from fedsim.learning import Learner
from fedsim.learning.refs import Loss, Ref

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""A value that JSON has."""


class TreeWriter:
    """Writer of values as JSON trees.

    Args:
        learner: computes the models in the values.

    Attributes:
        arrays: the arrays of all values so far, in the order of their numbers in the trees.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.arrays: list[AnyArray] = []

    def write(self, value: object) -> Json:
        """Return the tree of a value.

        Args:
            value: None, a bool, a number, a text, an array, a model, or a list, tuple or dict of
                such values.

        Raises:
            SimulationError: the value has another type.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.generic):
            scalar: Json = value.item()
            return scalar
        if isinstance(value, np.ndarray):
            return {"array": self._add(value)}
        if isinstance(value, Ref):
            return self._write_model(value)
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.write(item) for item in value]}
        if isinstance(value, Mapping):
            return {"dict": [[self.write(key), self.write(value[key])] for key in value]}
        raise SimulationError(
            f"{shown(value)} is a {type(value).__name__}, which cannot be sent; allowed are "
            "numbers, texts, arrays, models, and lists, tuples and dicts of them"
        )

    def _add(self, array: AnyArray) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _write_model(self, model: Ref) -> Json:
        tree: dict[str, Json] = {"model": self._add(value_of(self._learner, model))}
        if model.loss is not None:
            tree["loss"] = [model.loss.value, dict(model.loss.numbers)]
        if model.state is not None:
            tree["state"] = self.write(dict(model.state))
        return tree


def read_tree(tree: Json, arrays: Sequence[AnyArray], learner: Learner) -> object:
    """Return the value of a tree that ``TreeWriter`` has written.

    Args:
        tree: the tree.
        arrays: ``TreeWriter.arrays``.
        learner: names the models in the value.
    """
    if isinstance(tree, list) or not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return arrays[_number(tree["array"])]
    if "model" in tree:
        return _read_model(tree, arrays, learner)
    ((kind, content),) = tree.items()
    assert isinstance(content, list)
    if kind == "dict":
        pairs: dict[object, object] = {}
        for pair in content:
            assert isinstance(pair, list)
            pairs[read_tree(pair[0], arrays, learner)] = read_tree(pair[1], arrays, learner)
        return pairs
    items = [read_tree(item, arrays, learner) for item in content]
    return items if kind == "list" else tuple(items)


def _number(tree: Json) -> int:
    assert isinstance(tree, int)
    return tree


def _read_model(tree: dict[str, Json], arrays: Sequence[AnyArray], learner: Learner) -> Ref:
    model = learner.received(np.array(arrays[_number(tree["model"])], dtype=np.float32))
    report = tree.get("loss")
    if isinstance(report, list):
        model.loss = read_report(report)
    state = read_tree(tree.get("state"), arrays, learner)
    if isinstance(state, Mapping):
        model.state = state
    return model


def read_report(report: Sequence[Json]) -> Loss:
    """Return the reports of a training from their tree: the loss, and numbers by name."""
    value, numbers = report
    assert isinstance(value, float | int)
    assert isinstance(numbers, dict)
    named = {name: number for name, number in numbers.items() if isinstance(number, int | float)}
    return Loss(float(value), named)


def value_of(learner: Learner, model: Ref) -> AnyArray:
    """Return the values of a model, which are computed if they are needed for the first time.

    Args:
        learner: the learner of the model.
        model: the model.
    """
    learner.compute_now(model)
    value = model.value
    assert value is not None
    return value
