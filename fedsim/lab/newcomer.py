"""``fedsim new``: writes a commented study of deadlines and strategies from five answers."""

import math
import re
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_text, read_toml
from fedsim.common.units import Bytes, BytesPerSecond, PositiveSeconds, read_quantity, show_seconds
from fedsim.world.device_kinds import LINKS, figures

_HERE = Path(__file__).parents[1] / "running" / "scenarios" / "new"
# scikit-learn's digits: count of training samples, features and classes
_DIGITS = 1437
_FEATURES = 64
_CLASSES = 10
_MOST_DEVICES = _DIGITS // 2  # each device needs two samples
_WIDEST = 2048  # greatest width of a single hidden layer; a larger model has two layers
# size (bytes) above which a small model is trained instead; messages keep the large size
_LARGEST_TRAINED = 8e6
_SMALL_MODEL = 6e5  # bytes of the small model
_EPOCHS = 2  # epochs of each training
_MOST_ALWAYS_SELECTED = 4  # up to this count of devices, all are clients of each round
_LARGEST_COHORT = 20  # upper bound of the clients of a round
# deadlines to try, as multiples of the median time of a task
_DEADLINE_FACTORS = (0.7, 1.0, 1.5, 3.0)
# rate down, rate up (if it differs), and the first letter of their unit
_RATE = re.compile(r"(?i)\s*([0-9.]+)\s*(?:/\s*([0-9.]+)\s*)?([kMG])(?:bit/s|bps)\s*")
# figures of a link for which the user gives rates only
_OTHER_FIGURES = {"latency": "30 ms", "spread": "1.5"}
_PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenetv2": 3_504_872,
    "efficientnetb0": 5_288_548,
    "vgg16": 138_357_544,
    "vitb16": 86_567_656,
}
"""Count of parameters of well-known models with 1000 classes; source: torchvision's documentation,
"Models and pre-trained weights"."""

_OORT = Template(
    'oort.strategy.selection = { kind = "oort", pacer_step = "$step s" }  # the fast ones that '
    "are of use\n"
)
_SIZED = Template("""
[base.messages]                         # they have the size of your model; what learns is a smaller one
down = { kind = "plain", size = "$size" }
up = { kind = "plain", size = "$size" }
""")

QUESTIONS = {
    "devices": ("Which devices, and how many? (phones, boards, hospitals, regions)", "200 phones"),
    "link": ("Over which link? (lte, 5g, wifi, office, wan, or down/up as '20/5 Mbit/s')", "lte"),
    "model": ("How large is the model? (a size, or a name such as resnet18)", "5 MB"),
    "target": ("Which accuracy is the goal?", "0.9"),
    "deadline": ("Which deadline has a round? (a time, or 'try' for several)", "try"),
}
"""Questions by name, each with its default answer."""


def write_study(
    file: Path, devices: str, link: str, model: str, target: float, deadline: str
) -> str:
    """Write a study file from a new user's answers to the five ``QUESTIONS`` of ``fedsim new``.

    Args:
        file: path of the study, which must not exist.
        devices, link, model, target, deadline: the answer to the question of the same name.

    Returns:
        A line of text about the study: its size, and the estimated time of a task.

    Raises:
        ScenarioError: an answer is not allowed, or the file exists.
    """
    _check_answers(file, target)
    fleet = _read_fleet(devices)
    size_text = _size_text(model)
    size = read_quantity("model", size_text, Bytes)
    answered_link = _read_link(link, size)
    task_s = answered_link.transfer_s + _EPOCHS * fleet.hardware["epoch"]
    deadlines, note = _choose_deadlines(deadline, task_s)
    cohort = _choose_cohort(fleet.devices)
    strategies_with_rounds = ["fedavg", "fedavg-int8"]
    oort = ""
    if cohort < fleet.devices:  # otherwise every selection takes all devices
        strategies_with_rounds.append("oort")
        oort = _OORT.substitute(step=f"{_round_to_two_digits(task_s):g}")
    # FedBuff has no rounds, and thus no deadline: it is one cell
    cells = len(strategies_with_rounds) * len(deadlines) + 1
    fields: dict[str, object] = {
        "link": link.strip(),
        "target": f"{target:g}",
        "percent": f"{100 * target:g} %",
        "file": file.name,
        "stem": file.stem,
        "about": f"{cells} cells of three seeds each; some minutes on two cores.",
        "deadlines": ", ".join(f'"{value:g} s"' for value in deadlines),
        "deadline_note": note,
        "oort": oort,
        "in_rounds": ", ".join(f'"{name}"' for name in strategies_with_rounds),
        "cohort": cohort,
        "buffer": max(1, cohort // 2),
        "rates": answered_link.rates,
    }
    fields |= _fields_of_fleet(fleet, answered_link.preset)
    fields |= _fields_of_model(size_text.strip(), size)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(Template(read_text(_HERE / "study.txt")).substitute(fields), encoding="utf-8")
    strategies = len(strategies_with_rounds) + 1  # the additional strategy is FedBuff
    counts = f"{len(deadlines)} deadlines, {strategies} strategies, 3 seeds"
    return f"{file}: {counts}; a task takes some {show_seconds(task_s)} in the median"


def _check_answers(file: Path, target: float) -> None:
    """Raise ``ScenarioError`` if the study cannot be written to ``file``, or the target is wrong."""
    if file.suffix != ".toml":
        raise ScenarioError(f"the file is {str(file)!r}; allowed is a name that ends in .toml")
    if file.exists():
        raise ScenarioError(f"{str(file)!r} exists already; give another name")
    if not 0 < target < 1:
        raise ScenarioError(
            f"the target is {target:g}; allowed is an accuracy between 0 and 1, such as 0.9"
        )


class _Fleet(NamedTuple):
    """Answer to the question about devices.

    Attributes:
        devices: count of devices.
        kind: kind of the devices, such as ``phones``.
        hardware: table of the kind in ``kinds.txt``, with the duration ``epoch`` of an epoch (s).
    """

    devices: int
    kind: str
    hardware: dict[str, Any]


class _AnsweredLink(NamedTuple):
    """Answer to the question about links.

    Attributes:
        rates: rates and latency as lines of TOML.
        preset: name of the link's energy preset (power of the radio), such as ``smartphone-wifi``.
        transfer_s: time to transfer the model down and up (s).
    """

    rates: str
    preset: str
    transfer_s: float


def _fields_of_fleet(fleet: _Fleet, preset: str) -> dict[str, object]:
    """Return values for the placeholders of the study's template on devices and server, by name.

    Args:
        fleet: the devices.
        preset: name of the energy preset (power of the radio) of their link.
    """
    hardware = fleet.hardware
    return {
        "devices": f"{fleet.devices} {fleet.kind}",
        "count": fleet.devices,
        "speed": f"{_DIGITS / fleet.devices / hardware['epoch']:.3g}",
        "speed_spread": hardware["spread"],
        "epoch": show_seconds(hardware["epoch"]),
        "population": hardware["population"],
        "server": hardware["server"],
        "energy": Template(hardware["energy"]).substitute(preset=preset),
    }


def _fields_of_model(size_text: str, size: float) -> dict[str, object]:
    """Return values for the placeholders of the study's template on model and messages, by name.

    Args:
        size_text: size of the user's model as text.
        size: the size (bytes). Instead of a large model, a small one is trained.
    """
    trained_bytes = size
    int8_codec = '"int8"'
    messages = ""
    if size > _LARGEST_TRAINED:
        trained_bytes = _SMALL_MODEL
        # int8 messages have a quarter of the size in float32
        int8_codec = f'{{ kind = "plain", size = "{size / 4e6:g} MB" }}'
        messages = _SIZED.substitute(size=size_text)
    parameters = round(trained_bytes / 4)  # a float32 has four bytes
    return {
        "model": size_text,
        "hidden": ", ".join(map(str, hidden_for(parameters))),
        "int8": int8_codec,
        "messages": messages,
    }


def _size_text(model: str) -> str:
    """Return the size of a well-known model as text, in float32; a size is returned unchanged.

    Args:
        model: name of the model, such as ``resnet18``, or a size, such as ``5 MB``.

    Raises:
        ScenarioError: the name is unknown.
    """
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    if name in _PARAMETERS:
        return f"{4 * _PARAMETERS[name] / 1e6:.3g} MB"
    if name[:1].isalpha():
        raise ScenarioError(
            f"model is {model!r}; allowed is a size such as '5 MB', or one of "
            f"{', '.join(_PARAMETERS)}{nearest(name, _PARAMETERS)}"
        )
    return model


def _choose_cohort(devices: int) -> int:
    """Return the clients per round of a new user's study: half of the devices, but at most 20.

    Four devices or fewer are all clients of each round.

    Args:
        devices: count of devices.
    """
    if devices <= _MOST_ALWAYS_SELECTED:
        return devices
    return min(devices // 2, _LARGEST_COHORT)


def _choose_deadlines(answer: str, task_s: float) -> tuple[list[float], str]:
    """Return the deadlines (s) that a new user's study tries, and a note about them.

    Args:
        answer: the user's answer to the question about deadlines: a time, or ``try`` for multiples
            of ``task_s``.
        task_s: estimated time of a device's task (s).
    """
    if answer.strip().lower() == "try":
        deadlines = [_round_to_two_digits(task_s * factor) for factor in _DEADLINE_FACTORS]
        return deadlines, f"a task takes some {task_s:.0f} s in the median"
    middle = read_quantity("deadline", answer, PositiveSeconds)
    deadlines = [_round_to_two_digits(middle * factor) for factor in (0.5, 1.0, 2.0)]
    return deadlines, "yours, its half and its double"


def hidden_for(parameters: int) -> list[int]:
    """Return the widths of the hidden layers of a perceptron with about ``parameters`` weights.

    The perceptron classifies scikit-learn's digits. It has one hidden layer, or two if one layer
    would be wider than 2048.
    """
    # one layer of width w has (features + 1) * w + (w + 1) * classes weights
    single_width = (parameters - _CLASSES) / (_FEATURES + 1 + _CLASSES)
    if single_width <= _WIDEST:
        return [max(1, round(single_width))]
    # a second layer adds w (w + 1) weights: w^2 + linear w = parameters - classes
    linear = _FEATURES + 2 + _CLASSES
    width = round((math.sqrt(linear**2 + 4 * (parameters - _CLASSES)) - linear) / 2)
    return [width, width]


def _read_fleet(text: str) -> _Fleet:
    """Read the answer to a new user's question about devices, such as ``200 phones``."""
    kinds = read_toml(_HERE / "kinds.txt")
    number, _, kind = text.strip().partition(" ")
    kind = kind.strip().lower()
    if not number.isdecimal() or not 2 <= int(number) <= _MOST_DEVICES or kind not in kinds:
        allowed = (
            f"a count from 2 to {_MOST_DEVICES} and one of {', '.join(kinds)}, such as '200 "
            f"phones'{nearest(kind, kinds)}"
        )
        raise ScenarioError(f"devices is {text!r}; allowed is {allowed}")
    return _Fleet(int(number), kind, kinds[kind])


def _read_link(text: str, size: float) -> _AnsweredLink:
    """Read the answer to a new user's question about links.

    Args:
        text: a rate such as ``50 Mbit/s``, rates down and up (``20/5 Mbit/s``), or a link's name.
        size: size of a model (bytes).

    Raises:
        ScenarioError: the answer is not allowed.
    """
    link = _figures_of_link(text)
    down = read_quantity("link", link["down"], BytesPerSecond)
    up = read_quantity("link", link["up"], BytesPerSecond)
    if down == 0 or up == 0:
        raise ScenarioError(f"link is {text!r}; allowed are rates above 0")
    lines = []
    for direction in ("down", "up"):
        median = f'median = "{link[direction]}"'
        spread = f"spread = {float(link['spread'])}"
        lines.append(f'{direction} = {{ kind = "lognormal", {median}, {spread} }}')
    lines.append(f'latency = "{link["latency"]}"')
    preset = link.get("preset", "smartphone-wifi")
    return _AnsweredLink("\n".join(lines), preset, size / down + size / up)


def _figures_of_link(text: str) -> dict[str, str]:
    """Return the figures of a link as texts with units, by name, from a user's answer.

    They are ``down`` and ``up`` (median rates), ``latency``, ``spread`` (of the rates between
    devices) and, for a link with a name, its energy ``preset``.

    Args:
        text: a rate such as ``50 Mbit/s``, rates down and up (``20/5 Mbit/s``), or a link's name.

    Raises:
        ScenarioError: the answer is neither rates nor the name of a link.
    """
    match = _RATE.fullmatch(text)
    if match:
        down, up, first_letter = match.groups()
        unit = {"k": "kbit/s", "m": "Mbit/s", "g": "Gbit/s"}[first_letter.lower()]
        rates = {"down": f"{down} {unit}", "up": f"{up or down} {unit}"}
        return {**rates, **_OTHER_FIGURES}
    if re.match(r"\s*[0-9]", text):
        raise ScenarioError(
            f"link is {text!r}; allowed are a rate both ways, such as '50 Mbit/s', rates down "
            "and up, such as '20/5 Mbit/s', and names ('fedsim describe links')"
        )
    catalogued = figures(text.strip().lower(), "link", LINKS)
    return {key: str(figure.value) for key, figure in catalogued.items()}


def _round_to_two_digits(seconds: float) -> float:
    return float(f"{seconds:.2g}")
