"""``fedsim new``: writes a commented study from five answers, which compares deadlines,
strategies and costs.
"""

import math
import re
from pathlib import Path
from string import Template
from typing import Any

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_text, read_toml
from fedsim.common.units import Bytes, BytesPerSecond, PositiveSeconds, read_quantity, show_seconds
from fedsim.world.device_kinds import LINKS, figures

_HERE = Path(__file__).parents[1] / "running" / "scenarios" / "new"
# training samples of scikit-learn's digits, and their shape
_DIGITS = 1437
_FEATURES = 64
_CLASSES = 10
_MOST_DEVICES = _DIGITS // 2  # each needs two samples
_WIDEST = 2048  # of one hidden layer; a larger model has two
# bytes: of larger models only messages have the size, or a study would compute for hours
_LARGEST = 8e6
_STAND_IN = 6e5
_EPOCHS = 2
_FACTORS = (0.7, 1.0, 1.5, 3.0)  # deadlines to try, as multiples of the median time of a task
_RATE = re.compile(r"\s*([0-9.]+)\s*/\s*([0-9.]+)\s*Mbit/s\s*")

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
    "model": ("How large is the model?", "5 MB"),
    "target": ("Which accuracy is the goal?", "0.9"),
    "deadline": ("Which deadline has a round? (a time, or 'try' for several)", "try"),
}
"""Each question, with the answer that Enter gives."""


def write_study(
    file: Path, devices: str, link: str, model: str, target: float, deadline: str
) -> str:
    """Write a study of the answers to ``QUESTIONS``; returns one line on it.

    Raises:
        ScenarioError: an answer is not allowed, or there is such a file.
    """
    if file.suffix != ".toml":
        raise ScenarioError(f"the file is {str(file)!r}; allowed is a name that ends in .toml")
    if file.exists():
        raise ScenarioError(f"{str(file)!r} exists already; give another name")
    if not 0 < target < 1:
        raise ScenarioError(
            f"the target is {target:g}; allowed is an accuracy between 0 and 1, such as 0.9"
        )
    count, kind, own = _devices(devices)
    size = read_quantity("model", model, Bytes)
    is_large = size > _LARGEST
    rates, preset, link_s = _link(link, size)
    task_s = link_s + _EPOCHS * own["epoch"]
    cohort = max(2, min(count // 2, 20)) if count > 4 else count
    if deadline.strip().lower() == "try":
        deadlines = [_round(task_s * by) for by in _FACTORS]
        note = f"a task takes some {task_s:.0f} s in the median"
    else:
        middle = read_quantity("deadline", deadline, PositiveSeconds)
        deadlines = [_round(middle * by) for by in (0.5, 1.0, 2.0)]
        note = "yours, its half and its double"
    # of all devices none is selected
    in_rounds = ["fedavg", "fedavg-int8", *(["oort"] if cohort < count else [])]
    answers: dict[str, Any] = {
        "devices": f"{count} {kind}",
        "count": count,
        "link": link.strip(),
        "model": model.strip(),
        "target": f"{target:g}",
        "percent": f"{100 * target:g} %",
        "file": file.name,
        "stem": file.stem,
        "about": f"{len(in_rounds) * len(deadlines) + 1} cells of three seeds each; some minutes on two "
        ""
        "cores.",
        "deadlines": ", ".join(f'"{value:g} s"' for value in deadlines),
        "deadline_note": note,
        "oort": _OORT.substitute(step=f"{_round(task_s):g}") if cohort < count else "",
        "in_rounds": ", ".join(f'"{name}"' for name in in_rounds),
        "cohort": cohort,
        "buffer": max(1, cohort // 2),
        "hidden": ", ".join(map(str, hidden_for(round((_STAND_IN if is_large else size) / 4)))),
        "int8": f'{{ kind = "plain", size = "{size / 4e6:g} MB" }}' if is_large else '"int8"',
        "messages": _SIZED.substitute(size=model.strip()) if is_large else "",
        "speed": f"{_DIGITS / count / own['epoch']:.3g}",
        "speed_spread": own["spread"],
        "epoch": show_seconds(own["epoch"]),
        "population": own["population"],
        "server": own["server"],
        "rates": rates,
        "energy": Template(own["energy"]).substitute(preset=preset),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(Template(read_text(_HERE / "study.txt")).substitute(answers), encoding="utf-8")
    cells = f"{len(deadlines)} deadlines, {len(in_rounds) + 1} strategies, 3 seeds"
    return f"{file}: {cells}; a task takes some {show_seconds(task_s)} in the median"


def hidden_for(parameters: int) -> list[int]:
    """Widths of a perceptron for digits with about so many parameters: one hidden layer, or two
    where it would be very wide.
    """
    width = (parameters - _CLASSES) / (_FEATURES + 1 + _CLASSES)
    if width <= _WIDEST:
        return [max(1, round(width))]
    linear = _FEATURES + 2 + _CLASSES
    return [round((math.sqrt(linear**2 + 4 * (parameters - _CLASSES)) - linear) / 2)] * 2


def _devices(text: str) -> tuple[int, str, dict[str, Any]]:
    kinds = read_toml(_HERE / "kinds.txt")
    number, _, kind = text.strip().partition(" ")
    kind = kind.strip().lower()
    if not number.isdecimal() or not 2 <= int(number) <= _MOST_DEVICES or kind not in kinds:
        allowed = (
            f"a count from 2 to {_MOST_DEVICES} and one of {', '.join(kinds)}, such as '200 "
            f"phones'{nearest(kind, kinds)}"
        )
        raise ScenarioError(f"devices is {text!r}; allowed is {allowed}")
    return int(number), kind, kinds[kind]


def _link(text: str, size: float) -> tuple[str, str, float]:
    """Rates and latency of a link in TOML, an energy preset, and the time of ``size`` bytes down
    and up (s).
    """
    if found := _RATE.fullmatch(text):
        said = {
            "down": f"{found[1]} Mbit/s",
            "up": f"{found[2]} Mbit/s",
            "latency": "30 ms",
            "spread": "1.5",
        }
    else:
        said = {
            key: str(figure.value)
            for key, figure in figures(text.strip().lower(), "link", LINKS).items()
        }
    down, up = (read_quantity("link", said[way], BytesPerSecond) for way in ("down", "up"))
    if not (down and up):
        raise ScenarioError(f"link is {text!r}; allowed are rates above 0")
    lines = [
        f'{way} = {{ kind = "lognormal", median = "{said[way]}", spread = '
        f"{float(said['spread'])} }}"
        for way in ("down", "up")
    ]
    rates = "\n".join([*lines, f'latency = "{said["latency"]}"'])
    return rates, said.get("preset", "smartphone-wifi"), size / down + size / up


def _round(seconds: float) -> float:
    return float(f"{seconds:.2g}")
