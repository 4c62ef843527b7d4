"""Colours of pictures, and looks of lines and marks that several pictures share.

The palette is by Okabe and Ito (2008), whose colours the colour-blind can tell apart. Useful work
has cool colours, and wasted work has warm and dark colours.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from matplotlib.colors import to_hex, to_rgb

from fedsim.common import step_names
from fedsim.lab.reading import attempts

Look: TypeAlias = dict[str, Any]
"""Keyword arguments of an artist of matplotlib, such as ``color`` and ``linewidth``."""
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
PALE = "#EFEFEF"
AWAY = "#B3B3B3"  # colour of unreachable devices
HATCHED: Look = {
    "facecolor": PALE,
    "edgecolor": GREY,
    "hatch": "//////",
}  # look of hatched entries in legends
PRE_TRAINING = "#443300"
STEPS = {
    step_names.DOWNLOAD: SKY,
    step_names.TRAIN: GREEN,
    step_names.EVALUATE: YELLOW,
    step_names.UPLOAD: BLUE,
    step_names.QUEUE: ORANGE,
    attempts.PRE_TRAINING: PRE_TRAINING,
    step_names.DECODE: "#448888",
    step_names.ENCODE: "#332288",
    step_names.COMPUTE: "#117733",
    step_names.START_UP: "#7777FF",
    step_names.SLEEP: "#665555",
}
# colours of kinds of steps that users define
_ADDED_STEPS = ("#EE3377", "#999933", "#44BB99", "#AA3377", "#EE8866", "#6666CC")
OUTCOMES = {
    "done": "#A9BFCC",
    "late": VERMILLION,
    "lost": BLACK,
    "left": PURPLE,
    "stopped": GREY,
    "memory": "#882255",
    "battery": "#8C564B",
}
VALID = "#66C5AB"  # lighter than the colour of ``late``, to differ in print without colours
DEADLINE: Look = {"color": VERMILLION, "linewidth": 1.2, "linestyle": (0, (4, 3))}
# line in a device's lane at T, the time limit of the device's training
LIMIT: Look = {"color": VERMILLION, "linewidth": 1.8, "linestyle": "-"}
SPLIT: Look = {"marker": "D", "color": PURPLE, "markerfacecolor": "white"}
# Colours of series. The first seven are by Okabe and Ito, the others (except grey) by Paul Tol.
SERIES = (
    *(BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK),
    *("#882255", "#332288", "#999933", "#661100", GREY, "#117733"),
)
# Colours of groups of devices; no kind of step has one of them. The colour-blind can tell the first
# five apart (``tests/analysis/test_colours.py`` measures all colours that share a picture).
GROUPS = (
    "#542788",
    "#B35806",
    "#A6DBA0",
    "#994455",
    "#C2A5CF",
    "#661100",
    "#DDBB77",
    "#AA4499",
    "#AA8866",
    "#7F3B08",
)
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


def lighten(colour: str, share: float) -> tuple[float, float, float]:
    """Mix a colour with the share ``share`` (0..1) of white; return red, green and blue (0..1)."""
    red, green, blue = (part + (1 - part) * share for part in to_rgb(colour))
    return red, green, blue


def line_of(number: int, width: float) -> Look:
    """Return colour, dash and width of a line. Successive lines differ in colour and dash.

    The first 13 lines have different colours. Further lines repeat the colours in paler shades and
    with other dashes.

    Args:
        number: index of the run or series, from 0.
        width: width of the line (points).
    """
    turn, colour = divmod(number, len(SERIES))
    # the shift by ``turn`` gives a colour another dash when it is used again
    dash = ("-", "--", ":", "-.")[(number + 2 * turn) % 4]
    shade = to_hex(lighten(SERIES[colour], 0.3 * min(turn, 2)))
    return {"color": shade, "linestyle": dash, "linewidth": width}


def step_colours(kinds: Iterable[str]) -> dict[str, str]:
    """Assign colours to kinds of steps.

    Args:
        kinds: kinds of steps, of fedsim and of users.

    Returns:
        Kind -> colour: kinds of fedsim in the order of ``STEPS``, then kinds of users by name. If
        users have more than six kinds, the colours repeat in paler shades.
    """
    present = set(kinds)
    colours = {kind: colour for kind, colour in STEPS.items() if kind in present}
    for number, kind in enumerate(sorted(present - STEPS.keys())):
        turn, colour = divmod(number, len(_ADDED_STEPS))
        colours[kind] = to_hex(lighten(_ADDED_STEPS[colour], 1 - 0.6**turn))
    return colours


def group_colour(group: int) -> str:
    """Return the colour of a group of devices, which the group has in all pictures.

    After ten groups, the colours repeat in paler shades.

    Args:
        group: index of the group, from 0.
    """
    turn, colour = divmod(group, len(GROUPS))
    return to_hex(lighten(GROUPS[colour], 1 - 0.5 ** min(turn, 2)))


def group_tint(group: int) -> str:
    """Return the pale background colour of a group of devices."""
    return to_hex(lighten(group_colour(group), 0.72))
