"""Tensors of a run's models, from its model files and from its scenario, and their encoded sizes.

The arithmetic of layers and codecs is independent of the engine's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from fedsim.common.tensor_files import StoredTensor
from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import read_quantity

Tensors = dict[str, tuple[int, ...]]
"""Dict from tensor name to shape."""

_SAMPLES = {
    "digits": ((8, 8), 10),
    "mnist": ((28, 28), 10),
    "fashion": ((28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
}
"""Dict from built-in data source to shape of a sample, and count of classes."""

_HIDDEN_WIDTHS: Mapping[str, tuple[int, ...]] = {"logistic": (), "femnist-mlp": (512,)}
"""Dict from kind of model to the count of outputs of each hidden layer; all layers are dense."""

_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_MODEL_FILES = ("global", "group", "device")


def coded_bytes(codec: TomlTable, count: int, model_parameters: int) -> float | None:
    """Return the size of model parameters in a message, after compression such as ``int8``.

    Args:
        codec: the scenario's section of the compression, such as ``messages.up``.
        count: count of the parameters that are sent.
        model_parameters: count of the parameters of the whole model, at least ``count``.

    Returns:
        The size (bytes); None if the compression is user code.
    """
    # quantised parameters have one float32 scale per bucket, by default one for all
    bucket = codec.get("bucket") or max(count, 1)
    scale_bytes = 4 * math.ceil(count / bucket)
    match codec["kind"]:
        case "plain":
            size = codec.get("size")
            if size is None:
                return float(count * _DTYPE_BYTES[codec["dtype"]])
            # the scenario sets the size of a whole model
            return float(read_quantity(Bytes, size) * count / model_parameters)
        case "float16" | "bfloat16":
            return 2 * count
        case "int8":
            return count + scale_bytes
        case "qsgd":
            # a number has a sign and a magnitude of 0..levels, which makes 2 levels + 1 codes
            bits = (2 * codec["levels"]).bit_length()
            return float(math.ceil(count * bits / 8) + scale_bytes)
        case "sign":
            return math.ceil(count / 8) + scale_bytes
        case "top-k" | "random-k":
            selected = min(max(1, round(codec["share"] * count)), count)
            if selected == count:
                return float(4 * selected)
            # positions are int32 indices or a bit mask, whichever is smaller
            position_bytes = min(4 * selected, math.ceil(count / 8))
            return float(4 * selected + position_bytes)
    return None


def models_in_file(tensors: Mapping[str, StoredTensor], name: str) -> dict[str, Tensors]:
    """Return the shapes of the tensors of each model in a saved model file.

    The files ``group`` and ``device`` have a model for each group or device. Other files have one.

    Args:
        tensors: dict from name of a tensor in the file to the tensor. In the files ``group`` and
            ``device``, the name begins with the ID of the group or device, and ``/``.
        name: name of the file, without suffix.

    Returns:
        Dict from ID of the group or device, as text, to shape by name of tensor. The ID of the only
        model of another file is ``""``.
    """
    models: dict[str, Tensors] = {}
    for key, values in tensors.items():
        member = ""
        tensor = key
        if name in ("group", "device"):
            member, _, tensor = key.partition("/")
        models.setdefault(member, {})[tensor] = tuple(values.shape)
    return models


def saved_tensors(evidence: Evidence) -> Tensors | None:
    """Return the shapes of the tensors of one saved model of the run; None if it saved no model."""
    for name, tensors in sorted(evidence.models.items()):
        if name in _MODEL_FILES:
            return next(iter(models_in_file(tensors, name).values()), None)
    return None


def dense_tensors(scenario: TomlTable) -> tuple[Tensors, Tensors] | None:
    """Compute the tensors that a scenario's model has, if all its layers are dense.

    Args:
        scenario: the scenario, whose sections on data and model determine the layers.

    Returns:
        Two dicts from name of a tensor to its shape: the trained tensors, and the frozen ones,
        which stay as they are. None if the model has other layers, or depends on a user's file.
    """
    model = scenario.get("model", {"kind": "module"})
    samples = _sample_shape(scenario)
    hidden = _HIDDEN_WIDTHS.get(model["kind"])
    if model["kind"] == "mlp":
        hidden = tuple(model["hidden"])
    if samples is None or hidden is None or model.get("file") is not None:
        return None
    shape, classes = samples
    share = model.get("width", 1.0)
    widths = [math.ceil(share * outputs) for outputs in hidden]
    tensors: Tensors = {}
    inputs = math.prod(shape)
    # index of the layer in nn.Sequential: Flatten precedes it if samples are no vectors, and an
    # activation follows each layer
    index = 1 if len(shape) > 1 else 0
    for outputs in [*widths, classes]:
        tensors[f"{index}.weight"] = (outputs, inputs)
        tensors[f"{index}.bias"] = (outputs,)
        inputs = outputs
        index += 2
    return _split_trained(tensors, model)


def _sample_shape(scenario: TomlTable) -> tuple[tuple[int, ...], int] | None:
    """Return the shape of a sample of the scenario's data, and the count of classes.

    None if they depend on a user's file, or if the task is no classification.
    """
    data = scenario.get("data", {})
    source = data.get("source", {"kind": ""})
    objective = scenario.get("objective", {"kind": ""})
    if objective["kind"] != "classification" or data.get("column"):
        return None
    if source["kind"] == "synthetic":
        return (source["features"],), source["classes"]
    return _SAMPLES.get(source["kind"])


def _split_trained(tensors: Tensors, model: TomlTable) -> tuple[Tensors, Tensors]:
    """Split a model's tensors into trained tensors, and frozen ones, which stay as they are.

    Args:
        tensors: shapes of the tensors without LoRA adapters, by name. The tensors of the adapters
            are added to this dict.
        model: the scenario's section on the model, which selects adapters and trained tensors.

    Returns:
        Shapes of the trained, and of the frozen tensors, by name.
    """
    lora = model.get("lora")
    if lora is not None:
        for name, shape in [*tensors.items()]:
            layer = name.removesuffix(".weight")
            if layer != name and _matches_any(layer, lora["where"]):
                tensors[f"{layer}.lora_A"] = (lora["rank"], shape[1])
                tensors[f"{layer}.lora_B"] = (shape[0], lora["rank"])
    trained: Tensors = {}
    frozen: Tensors = {}
    for name, shape in tensors.items():
        if _is_trained(name, model):
            trained[name] = shape
        else:
            frozen[name] = shape
    return trained, frozen


def _is_trained(name: str, model: TomlTable) -> bool:
    patterns = model.get("train")
    if patterns is not None:
        return _matches_any(name, patterns)
    return model.get("lora") is None or bool(_adapter_side(name))


def _adapter_side(name: str) -> str:
    """Return which matrix of a low-rank (LoRA) adapter a tensor is: ``A`` or ``B``; "" if none.

    Args:
        name: name of the tensor, as fedsim or peft chooses it.
    """
    if ".lora_" not in name:
        return ""
    suffix = name.rpartition(".lora_")[2]
    return suffix.partition(".")[0]


def _matches_any(name: str, patterns: str | Sequence[str]) -> bool:
    if isinstance(patterns, str):
        return fnmatchcase(name, patterns)
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def count_parameters(tensors: Tensors) -> int:
    """Count the parameters in tensors of given shapes."""
    return sum(math.prod(shape) for shape in tensors.values())


def count_sent_parameters(scenario: TomlTable, tensors: Tensors) -> int | None:
    """Count the parameters of a model that devices send; personal parameters are not sent.

    Args:
        scenario: the scenario.
        tensors: shapes of the model's tensors.

    Returns:
        The count; None if the scenario selects the tensors by code that the folder does not have.
    """
    local_names = _local_names(scenario, tensors)
    if local_names is None:
        return None
    local_tensors = {name: tensors[name] for name in local_names}
    return count_parameters(tensors) - count_parameters(local_tensors)


def _local_names(scenario: TomlTable, tensors: Tensors) -> list[str] | None:
    """Return the names of a model's tensors that never leave a device, by strategy or scenario.

    Args:
        scenario: the scenario.
        tensors: shapes of all tensors of the model, by name.

    Returns:
        The names; None if the scenario selects them by code that the folder does not have.
    """
    strategy = scenario["strategy"]
    if strategy["kind"] in ("fedper", "fedrep"):
        return _names_in_head(strategy["head"], tensors)
    if strategy["kind"] == "fedbn":
        if strategy["keeps"] == "statistics":
            return [name for name in tensors if name.endswith(("running_mean", "running_var"))]
        return [name for name in tensors if _is_norm(name, tensors)]
    # ``model.keep`` has patterns of the local tensors, ``model.send`` of the tensors that are sent
    model = scenario.get("model", {})
    patterns = model.get("keep", model.get("send"))
    if not patterns:
        return []
    if isinstance(patterns, str):
        patterns = [patterns]
    if any(":" in pattern for pattern in patterns):
        return None
    if "keep" in model:
        return [name for name in tensors if _matches_any(name, patterns)]
    return [name for name in tensors if not _matches_any(name, patterns)]


def _names_in_head(head: int | str | Sequence[str], tensors: Tensors) -> list[str]:
    """Return the names of the tensors in a model's head, the last layers.

    Args:
        head: count of these layers, or patterns of the tensors' names.
        tensors: shapes of all tensors of the model, by name.
    """
    if not isinstance(head, int):
        return [name for name in tensors if _matches_any(name, head)]
    layers = [*dict.fromkeys(_layer_name(name) for name in tensors)]
    return [name for name in tensors if _layer_name(name) in layers[-head:]]


def _layer_name(name: str) -> str:
    return name.rpartition(".")[0]


def _is_norm(name: str, tensors: Tensors) -> bool:
    """Whether a tensor belongs to a normalisation layer, whose weight is a vector."""
    weight_shape = tensors.get(f"{_layer_name(name)}.weight")
    return weight_shape is not None and len(weight_shape) == 1


def count_reduced_parameters(tensors: Tensors, reduction: str, size: float) -> int | None:
    """Count the parameters of the smaller model that some devices train.

    Its layers are narrower than the whole model's, or its LoRA adapters have a lower rank.

    Args:
        tensors: shapes of the whole model's tensors.
        reduction: ``width`` for narrower layers, ``rank`` for adapters of a lower rank.
        size: share of the width (0..1), or the rank.

    Returns:
        The count; None if a model with adapters is reduced in width.
    """
    if reduction == "width":
        if any(_adapter_side(name) for name in tensors):
            return None
        return _count_narrow_parameters(tensors, size)
    return sum(math.prod(_cut_rank(name, shape, int(size))) for name, shape in tensors.items())


def count_adapter_parameters(tensors: Tensors, rank: float) -> int:
    """Count the parameters that a model's LoRA adapters would have with a given rank.

    Args:
        tensors: shapes of the model's tensors, by name; only tensors of adapters count.
        rank: the rank.
    """
    adapters = {name: shape for name, shape in tensors.items() if _adapter_side(name)}
    return sum(math.prod(_cut_rank(name, shape, int(rank))) for name, shape in adapters.items())


def _cut_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    side = _adapter_side(name)
    if side == "A":
        return rank, shape[1]
    if side == "B":
        return shape[0], rank
    return shape


def _count_narrow_parameters(tensors: Tensors, width: float) -> int:
    """Count the parameters of a chain of layers, each narrowed to a share of its outputs.

    The last layer keeps all its outputs.

    Args:
        tensors: shapes of the tensors of the whole layers, by name.
        width: the share (0..1).
    """
    layers = sorted({_layer_name(name) for name in tensors}, key=_layer_position)
    total = 0
    outputs_before = 0
    narrow_outputs = 0
    for layer in layers:
        outputs, inputs, *kernel = tensors[f"{layer}.weight"]
        if outputs_before:
            # the input is the previous layer's output; each channel may be several inputs
            inputs = inputs // outputs_before * narrow_outputs
        outputs_before = outputs
        narrow_outputs = outputs if layer == layers[-1] else math.ceil(width * outputs)
        total += narrow_outputs * inputs * math.prod(kernel)
        if f"{layer}.bias" in tensors:
            total += narrow_outputs
    return total


def _layer_position(layer: str) -> tuple[int, ...]:
    return tuple(int(part) for part in layer.split(".") if part.isdigit())


def check_tensors(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each saved model with other tensors than the scenario's model has.

    Names and shapes are compared if all layers are dense, and the ranks of LoRA adapters always.
    """
    scenario = evidence.run.scenario
    dense = dense_tensors(scenario)
    lora = scenario.get("model", {}).get("lora") or {}
    for name, tensors in sorted(evidence.models.items()):
        if name not in _MODEL_FILES:
            continue
        for member, shapes in sorted(models_in_file(tensors, name).items()):
            label = f"{name}/{member}" if member else name
            if dense is not None and shapes != dense[0]:
                yield f"the tensors of model {label!r} are {shapes}, by the scenario {dense[0]}"
            yield from _check_ranks(label, shapes, lora.get("rank"))


def _check_ranks(label: str, shapes: Tensors, rank: int | None) -> Iterator[str]:
    """Yield a finding for each LoRA adapter of a model whose rank is not the scenario's.

    The rank is the first dimension of the tensor ``lora_A``, and the second of ``lora_B``.

    Args:
        label: name of the model for the finding.
        shapes: shapes of the model's tensors.
        rank: the scenario's rank; None if it has no adapters.
    """
    for tensor, shape in shapes.items():
        side = _adapter_side(tensor)
        rank_dimension = 1 if side == "B" else 0
        if side and shape[rank_dimension] != rank:
            yield (
                f"{tensor} of model {label!r} has the shape {shape}, the scenario's rank is {rank}"
            )
