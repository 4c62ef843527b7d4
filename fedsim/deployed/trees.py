"""Conversion of values to JSON, with their arrays and models in a separate list, and back."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import SimulationError, show_value
from fedsim.deployed.reading import (
    Json,
    PacketError,
    count_of,
    list_of,
    number_of,
    pair_of,
    table_of,
)
from fedsim.learning import Learner
from fedsim.learning.refs import Loss, Ref


class TreeWriter:
    """Converter of a device's state, and of other values, to JSON and a list of arrays.

    In place of an array or a model, the JSON has the array's index in the list. For example the
    list of an array and the number 3 becomes ``{"list": [{"array": 0}, 3]}``.

    Args:
        learner: computes the weights of a model in a value, if they are not computed yet.

    Attributes:
        arrays: the arrays of all values converted so far.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.arrays: list[AnyArray] = []

    def write(self, value: object) -> Json:
        """Convert a value to JSON; its arrays and models are appended to ``arrays``.

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
            f"{show_value(value)} is a {type(value).__name__}, which cannot be sent; allowed are "
            "numbers, texts, arrays, models, and lists, tuples and dicts of them"
        )

    def _add(self, array: AnyArray) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    def _write_model(self, model: Ref) -> Json:
        tree: dict[str, Json] = {"model": self._add(value_of(self._learner, model))}
        if model.loss is not None:
            tree["loss"] = write_report(model.loss)
        if model.state is not None:
            tree["state"] = self.write(dict(model.state))
        return tree


def read_tree(tree: Json, arrays: Sequence[AnyArray], learner: Learner) -> object:
    """Restore a value that ``TreeWriter`` has converted to JSON.

    Args:
        tree: the JSON.
        arrays: ``TreeWriter.arrays``.
        learner: creates the references to the models in the value.

    Raises:
        PacketError: the JSON has another form.
    """
    if isinstance(tree, list):
        raise PacketError("a tree has a list without its kind")
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        return _array_at(tree["array"], arrays)
    if "model" in tree:
        return _read_model(tree, arrays, learner)
    if len(tree) != 1:
        raise PacketError(f"a tree has the kinds {show_value(', '.join(tree))}; allowed is one")
    ((kind, content),) = tree.items()
    entries = list_of(content, f"a tree's {show_value(kind)}")
    if kind == "dict":
        pairs: dict[object, object] = {}
        for entry in entries:
            key, value = pair_of(entry, "an entry of a dict")
            pairs[read_tree(key, arrays, learner)] = read_tree(value, arrays, learner)
        return pairs
    items = [read_tree(item, arrays, learner) for item in entries]
    match kind:
        case "list":
            return items
        case "tuple":
            return tuple(items)
    raise PacketError(
        f"a tree has the kind {show_value(kind)}; allowed are array, model, dict, list and tuple"
    )


def _array_at(place: Json, arrays: Sequence[AnyArray]) -> AnyArray:
    index = count_of(place, "the number of an array")
    if index >= len(arrays):
        raise PacketError(f"the number of an array is {index}, and there are {len(arrays)} arrays")
    return arrays[index]


def _read_model(tree: dict[str, Json], arrays: Sequence[AnyArray], learner: Learner) -> Ref:
    weights = np.array(_array_at(tree["model"], arrays), dtype=np.float32)
    if weights.ndim != 1:
        raise PacketError(f"a model has the shape {weights.shape}; allowed is one dimension")
    model = learner.received(weights)
    if "loss" in tree:
        model.loss = read_report(tree["loss"])
    state = read_tree(tree.get("state"), arrays, learner)
    if isinstance(state, Mapping):
        model.state = state
    return model


def write_report(loss: Loss) -> Json:
    """Convert a trainer's report to JSON, from which ``read_report`` restores it.

    Args:
        loss: the report: the training loss, and the trainer's other values by name.
    """
    return [loss.value, dict(loss.numbers)]


def read_report(report: Json) -> Loss:
    """Restore a trainer's report from the JSON that ``write_report`` has returned.

    The report is the training loss, and the trainer's other values by name.

    Args:
        report: the JSON.

    Raises:
        PacketError: the JSON has another form.
    """
    value, entries = pair_of(report, "a report")
    numbers: dict[str, float] = {}
    for name, number in table_of(entries, "the numbers of a report").items():
        numbers[name] = number_of(number, f"the report {show_value(name)}")
    return Loss(number_of(value, "the loss of a report"), numbers)


def value_of(learner: Learner, model: Ref) -> AnyArray:
    """Return the array of a model, and compute it first if it is not computed yet.

    Args:
        learner: the learner of the model.
        model: the model.
    """
    learner.compute_now(model)
    value = model.value
    assert value is not None
    return value
