"""Drawing of a Pareto front with numbered cells, and the names of the cells below."""

import math
from collections.abc import Sequence

from fedsim.analysis.report.axis import Axis
from fedsim.analysis.report.markup import Markup, el, join, plain
from fedsim.lab.compare.explore import CostPoint, ParetoFront

_WIDTH = 400
_HEIGHT = 240
_EDGE = 10
_ROOM = 22  # height above and below the drawing for texts
_BOTTOM = _HEIGHT - _ROOM
_MIDDLE_OF_NUMBER = (3, -4)  # offset of a number's middle from the start of its text
# offsets of a number's text from the middle of its dot, one per corner
_CORNERS = ((7, -5), (7, 12), (-13, -5), (-13, 12), (-3, -9), (-3, 18))
_LONGEST_NAME = 160

_Corner = tuple[float, float]


def draw_front(front: ParetoFront, colours: dict[int, str]) -> Markup:
    """Draw cells by two costs; cells of the front and runners-up have numbers.

    Args:
        front: the Pareto front with all cells.
        colours: colour of each line by its place.
    """
    x_axis = _axis([point.first for point in front.points])
    y_axis = _axis([point.second for point in front.points])

    def place(point: CostPoint) -> _Corner:
        x = x_axis.share(point.first)
        y = y_axis.share(point.second)
        width = _WIDTH - 2 * _EDGE - 24
        height = _HEIGHT - 2 * _ROOM - 16
        return round(_EDGE + 12 + x * width, 1), round(_BOTTOM - 10 - y * height, 1)

    parts = [el("path", d=f"M{_EDGE} {_ROOM - 8} V{_BOTTOM} H{_WIDTH - _EDGE}", class_="axes")]
    parts.append(_steps([place(point) for point in front.front]))
    for point in front.points:
        x, y = place(point)
        on_front = point.factor == 1
        dot = el(
            "circle",
            el("title", plain(front.format_point(point), _LONGEST_NAME)),
            cx=x,
            cy=y,
            fill=colours[point.line.place],
            class_="colour" if on_front else "others",
            r=5 if on_front else 3.5,
        )
        parts.append(dot)
    numbered = [*front.front, *front.runners_up]
    dots = [place(point) for point in front.points]
    parts += _numbers([place(point) for point in numbered], dots)
    parts += _labels(front, x_axis, y_axis)
    drawing = el(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=front.words,
        class_="front",
    )
    return join(_title(front), drawing, _names(front, numbered))


def _axis(costs: Sequence[float]) -> Axis:
    low = min(costs)
    return Axis(low, max(costs), is_log=low > 0)


def _steps(places: Sequence[_Corner]) -> Markup:
    """Return a line of steps through the cells of the front."""
    x, y = places[0]
    steps = " ".join(f"H{x} V{y}" for x, y in places[1:])
    return el("path", d=f"M{x} {y} {steps}", class_="step")


def _numbers(places: Sequence[_Corner], dots: Sequence[_Corner]) -> list[Markup]:
    """Return the number of each dot as a text, at the corner of the dot with the most room."""
    occupied = [*dots]
    numbers = []
    for number, (x, y) in enumerate(places, start=1):
        corners = [(x + dx, y + dy) for dx, dy in _CORNERS]
        corner = max(corners, key=lambda corner: _room_at(corner, occupied))
        occupied.append(_middle(corner))
        numbers.append(el("text", str(number), x=corner[0], y=corner[1], class_="number"))
    return numbers


def _middle(corner: _Corner) -> _Corner:
    dx, dy = _MIDDLE_OF_NUMBER
    return corner[0] + dx, corner[1] + dy


def _room_at(corner: _Corner, occupied: Sequence[_Corner]) -> float:
    """Return the distance of a number at ``corner`` from the nearest dot or number, at most 5."""
    middle = _middle(corner)
    return min(5.0, *(math.dist(middle, place) - 6 for place in occupied))


def _labels(front: ParetoFront, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    first, other = front.names
    show_x = front.first.show
    show_y = front.second.show
    vertical = f"{other}: {show_y(y_axis.low)} below, {show_y(y_axis.high)} on top"
    below = _HEIGHT - 6
    labels = (
        (vertical, _EDGE, 9, "start"),
        (show_x(x_axis.low), _EDGE, below, "start"),
        (first, _WIDTH / 2, below, "middle"),
        (show_x(x_axis.high), _WIDTH - _EDGE, below, "end"),
    )
    return [el("text", text, x=x, y=y, text_anchor=anchor) for text, x, y, anchor in labels]


def _title(front: ParetoFront) -> Markup:
    first, other = front.names
    remark = " the line joins those that no other beats in both; log scales"
    return el("p", el("strong", f"{first.capitalize()} against {other}"), el("small", remark))


def _names(front: ParetoFront, numbered: Sequence[CostPoint]) -> Markup:
    names = []
    for point in numbered:
        look = None if point.factor == 1 else "soft"
        names.append(el("li", plain(front.format_point(point), _LONGEST_NAME), class_=look))
    return el("ol", *names, class_="names")
