"""The tensors of a run's models, from the models in the folder and from the scenario, and their
bytes on the wire.

It has its own arithmetic of layers and codecs: nothing of the engine's is used.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import Evidence, TomlTable, read

Tensors = dict[str, tuple[int, ...]]
"""Shapes by name."""

_SAMPLES = {
    "digits": ((8, 8), 10),
    "mnist": ((28, 28), 10),
    "fashion": ((28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
}
"""Shape and classes of the samples of a source, where no file of the user's says them."""

_DENSE: Mapping[str, tuple[int, ...]] = {"logistic": (), "femnist-mlp": (512,)}
_BYTES_OF = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_ADAPTERS = (".lora_A", ".lora_B")


def coded_bytes(codec: TomlTable, count: int, whole: int) -> float | None:
    """Bytes of ``count`` out of ``whole`` numbers of a model by a codec of the scenario; None
    for a codec of one's own.
    """
    bucket = codec.get("bucket") or max(count, 1)
    scales = 4 * math.ceil(count / bucket)
    match codec["kind"]:
        case "plain":
            size = codec.get("size")
            return float(
                count * _BYTES_OF[codec["dtype"]]
                if size is None
                else read(Bytes, size) * count / whole
            )
        case "float16" | "bfloat16":
            return 2 * count
        case "int8":
            return count + scales
        case "qsgd":
            return float(math.ceil(count * (2 * codec["levels"]).bit_length() / 8) + scales)
        case "sign":
            return math.ceil(count / 8) + scales
        case "top-k" | "random-k":
            kept = min(max(1, round(codec["share"] * count)), count)
            positions = min(4 * kept, math.ceil(count / 8))
            return float(4 * kept + (positions if kept < count else 0))
    return None


def members(tensors: Mapping[str, Any], name: str) -> dict[str, Tensors]:
    """The models in a file, by member (``""``: the file is one model)."""
    found: dict[str, Tensors] = {}
    for key, values in tensors.items():
        member, _, tensor = key.partition("/") if name in ("group", "device") else ("", "", key)
        found.setdefault(member, {})[tensor] = tuple(values.shape)
    return found


def left_tensors(evidence: Evidence) -> Tensors | None:
    """The tensors of the models that the run has left; None if it has left none."""
    for name, tensors in sorted(evidence.models.items()):
        if name in ("global", "group", "device"):
            return next(iter(members(tensors, name).values()), None)
    return None


def dense_tensors(scenario: TomlTable) -> tuple[Tensors, Tensors] | None:
    """Trained and frozen tensors of a model of dense layers by the scenario; None if the
    scenario does not tell them.
    """
    model = scenario.get("model", {"kind": "module"})
    samples = _samples(scenario)
    hidden = tuple(model["hidden"]) if model["kind"] == "mlp" else _DENSE.get(model["kind"])
    if samples is None or hidden is None or model.get("file") is not None:
        return None
    shape, classes = samples
    widths = [*(math.ceil(model.get("width", 1.0) * each) for each in hidden), classes]
    tensors: Tensors = {}
    inputs = math.prod(shape)
    for layer, outputs in enumerate(widths):
        name = 2 * layer + (len(shape) > 1)
        tensors[f"{name}.weight"] = (outputs, inputs)
        tensors[f"{name}.bias"] = (outputs,)
        inputs = outputs
    return _split(tensors, model)


def _samples(scenario: TomlTable) -> tuple[tuple[int, ...], int] | None:
    data = scenario.get("data", {})
    source = data.get("source", {"kind": ""})
    if scenario.get("objective", {"kind": ""})["kind"] != "classification" or data.get("column"):
        return None
    if source["kind"] == "synthetic":
        return (source["features"],), source["classes"]
    return _SAMPLES.get(source["kind"])


def _split(tensors: Tensors, model: TomlTable) -> tuple[Tensors, Tensors]:
    """The trained tensors and the frozen ones, with adapters where the model has some."""
    lora = model.get("lora")
    patterns = model.get("train")
    if lora is not None:
        for name, shape in [*tensors.items()]:
            layer = name.removesuffix(".weight")
            if layer != name and _matches(layer, lora["where"]):
                tensors[f"{layer}.lora_A"] = (lora["rank"], shape[1])
                tensors[f"{layer}.lora_B"] = (shape[0], lora["rank"])
    if lora is not None and patterns is None:
        trained = {name for name in tensors if name.endswith(_ADAPTERS)}
    elif patterns is None:
        trained = {*tensors}
    else:
        trained = {name for name in tensors if _matches(name, patterns)}
    kept = {name: shape for name, shape in tensors.items() if name in trained}
    return kept, {name: shape for name, shape in tensors.items() if name not in trained}


def _matches(name: str, patterns: str | Sequence[str]) -> bool:
    return any(
        fnmatchcase(name, pattern)
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
    )


def numbers(tensors: Tensors) -> int:
    """Count of the numbers in some tensors."""
    return sum(math.prod(shape) for shape in tensors.values())


def sent_numbers(scenario: TomlTable, tensors: Tensors) -> int | None:
    """Count of the numbers of a model that leave a device; None if the scenario names them by
    what the folder does not have.
    """
    model = scenario.get("model", {})
    strategy = scenario["strategy"]
    layers = [*dict.fromkeys(name.rpartition(".")[0] for name in tensors)]
    match strategy["kind"]:
        case "fedper" | "fedrep" if isinstance(strategy["head"], int):
            kept = [
                name for name in tensors if name.rpartition(".")[0] in layers[-strategy["head"] :]
            ]
        case "fedper" | "fedrep":
            kept = [name for name in tensors if _matches(name, strategy["head"])]
        case "fedbn" if strategy["keeps"] == "statistics":
            kept = [name for name in tensors if name.endswith(("running_mean", "running_var"))]
        case "fedbn":
            kept = [name for name in tensors if _is_norm(name, tensors)]
        case _:
            patterns = model.get("keep", model.get("send"))
            listed = [patterns] if isinstance(patterns, str) else patterns or []
            if any(":" in pattern for pattern in listed):
                return None
            kept = [
                name for name in tensors if listed and _matches(name, listed) == ("keep" in model)
            ]
    return numbers(tensors) - numbers({name: tensors[name] for name in kept})


def _is_norm(name: str, tensors: Tensors) -> bool:
    layer = name.rpartition(".")[0]
    return len(tensors.get(f"{layer}.weight", (1, 1))) == 1


def cut_numbers(tensors: Tensors, by: str, size: float) -> int | None:
    """Count of the numbers of a smaller model: of a ``width``, or with adapters of a ``rank``;
    None where that is not known.
    """
    if by == "width":
        return (
            None if any(name.endswith(_ADAPTERS) for name in tensors) else _narrowed(tensors, size)
        )
    return sum(math.prod(_of_rank(name, shape, int(size))) for name, shape in tensors.items())


def adapter_numbers(tensors: Tensors, rank: float) -> int:
    """Count of the numbers in adapters of a rank."""
    adapters = {name: shape for name, shape in tensors.items() if name.endswith(_ADAPTERS)}
    return sum(math.prod(_of_rank(name, shape, int(rank))) for name, shape in adapters.items())


def _of_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    if name.endswith(".lora_A"):
        return rank, shape[1]
    return (shape[0], rank) if name.endswith(".lora_B") else shape


def _narrowed(tensors: Tensors, width: float) -> int:
    """Numbers of a chain of layers of which all but the last have a share of their outputs."""
    layers = sorted({name.rpartition(".")[0] for name in tensors}, key=_place)
    total = 0
    before = 0
    narrow = 0
    for layer in layers:
        outputs, inputs, *kernel = tensors[f"{layer}.weight"]
        had = inputs if not before else inputs // before * narrow
        before = outputs
        narrow = outputs if layer == layers[-1] else math.ceil(width * outputs)
        total += narrow * had * math.prod(kernel) + (narrow if f"{layer}.bias" in tensors else 0)
    return total


def _place(layer: str) -> tuple[int, ...]:
    return tuple(int(part) for part in layer.split(".") if part.isdigit())


def tensors_as_said(evidence: Evidence) -> Iterator[str]:
    """Names and shapes of the tensors of every model are those of the scenario's model and data."""
    scenario = evidence.run.scenario
    model = scenario.get("model", {})
    due = dense_tensors(scenario)
    for name, tensors in sorted(evidence.models.items()):
        for member, left in sorted(
            members(tensors, name).items() if name in ("global", "group", "device") else ()
        ):
            where = f"{name}/{member}" if member else name
            if due is not None and left != due[0]:
                yield f"the tensors of model {where!r} are {left}, by the scenario {due[0]}"
            rank = (model.get("lora") or {}).get("rank")
            for tensor, shape in left.items():
                if tensor.endswith(_ADAPTERS) and shape[tensor.endswith("B")] != rank:
                    yield (
                        f"{tensor} of model {where!r} has the shape {shape}, the scenario's rank "
                        f"is {rank}"
                    )
