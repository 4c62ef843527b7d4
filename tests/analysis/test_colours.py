"""Colours that share a picture are told apart, by readers with and without red-green blindness."""

import itertools
from collections.abc import Mapping, Sequence
from typing import get_args, get_type_hints

import matplotlib.colors
import numpy as np
import pytest
from numpy.typing import ArrayLike

from fedsim.analysis import palette
from fedsim.common import step_names
from fedsim.common.arrays import Floats
from fedsim.lab.reading.attempts import PRE_TRAINING
from fedsim.world.steps import Code, Download, Evaluate, Pause, Queue, Train, Upload, Work

_SEEN = {
    "all cones": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
"""Of linear RGB; Machado, Oliveira and Fernandes (2009), severity 1."""
_LEAST = {"all cones": 14.0, "deuteranopia": 10.0, "protanopia": 10.0}
"""Least CIEDE2000 distance of two colours of one picture; 2 is about what an eye just notices."""
_PHASES = {
    name: palette.STEPS[name] for name in ("download", "train", "evaluate", "upload", "queue")
}
_IDLE = {"idle": palette.PALE, "away": palette.AWAY}
_WASTED = {name: colour for name, colour in palette.OUTCOMES.items() if name != "done"}
PICTURES: dict[str, Mapping[str, str]] = {
    "steps of a timeline": palette.STEPS | {"idle": palette.PALE},
    "hatches of a timeline": _WASTED,
    "clients of a round": {
        "valid": palette.VALID,
        "pre-training": palette.PRE_TRAINING,
        **{name: _WASTED[name] for name in ("late", "lost", "stopped", "battery")},
        **{name: palette.STEPS[name] for name in ("download", "upload", "queue")},
    },
    "members of groups": {
        **{f"group {place}": colour for place, colour in enumerate(palette.GROUPS[:5])},
        "pre-training": palette.PRE_TRAINING,
        "no group": palette.PALE,
        "marks": palette.BLACK,
    },
    "pre-training and wasted work": _WASTED | {"pre-training": palette.PRE_TRAINING},
    "pre-training and lanes": _PHASES | _IDLE | {"pre-training": palette.PRE_TRAINING},
}


def lab(colour: str, seen: Floats) -> np.ndarray:
    """CIELAB of a colour (D65) as an eye sees it whose linear RGB is ``seen`` times the usual."""
    part = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.clip(
        seen @ np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4), 0, 1
    )
    matrix = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = np.array(matrix) @ linear / (0.95047, 1.0, 1.08883)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: ArrayLike, other: ArrayLike) -> float:
    """CIEDE2000 distance of two colours in CIELAB (Sharma, Wu and Dalal, 2005)."""
    l1, a1, b1 = np.asarray(one, dtype=float)
    l2, a2, b2 = np.asarray(other, dtype=float)
    mean_chroma = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean_chroma**7 / (mean_chroma**7 + 25.0**7))
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1 = np.degrees(np.arctan2(b1, stretch * a1)) % 360
    h2 = np.degrees(np.arctan2(b2, stretch * a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = np.radians((h1 + turn / 2) % 360)
    light, chroma = (l1 + l2) / 2 - 50, (c1 + c2) / 2
    weight = 1 - 0.17 * np.cos(hue - np.radians(30)) + 0.24 * np.cos(2 * hue)
    weight += 0.32 * np.cos(3 * hue + np.radians(6)) - 0.2 * np.cos(4 * hue - np.radians(63))
    by_light = (l2 - l1) / (1 + 0.015 * light**2 / np.sqrt(20 + light**2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn) / 2) / (1 + 0.015 * chroma * weight)
    rotation = 60 * np.exp(-(((np.degrees(hue) - 275) / 25) ** 2))
    mix = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(rotation))
    return float(np.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + mix * by_chroma * by_hue))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_distance_is_that_of_the_published_pairs(
    one: Sequence[float], other: Sequence[float], expected: float
) -> None:
    assert distance(one, other) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("eye", _SEEN)
@pytest.mark.parametrize("picture", PICTURES)
def test_colours_of_a_picture_are_told_apart(picture: str, eye: str) -> None:
    close = []
    for (one, a), (other, b) in itertools.combinations(PICTURES[picture].items(), 2):
        apart = distance(lab(a, _SEEN[eye]), lab(b, _SEEN[eye]))
        if apart < _LEAST[eye]:
            close.append((one, other, round(apart, 1)))
    assert not close


def test_groups_do_not_look_like_phases() -> None:
    for group, phase in itertools.product(palette.GROUPS, _PHASES.values()):
        assert distance(lab(group, np.eye(3)), lab(phase, np.eye(3))) > 10


def test_every_kind_of_step_of_fedsim_has_one_name_and_a_colour() -> None:
    values = [value for key, value in vars(step_names).items() if key.isupper()]
    names = {value for value in values if isinstance(value, str)}
    kinds = {*Code.names, *get_args(get_type_hints(Pause)["name"])}
    kinds |= {step.name for step in (Download, Upload, Train, Evaluate, Work, Queue)}
    assert names == kinds == palette.STEPS.keys() - {PRE_TRAINING}
