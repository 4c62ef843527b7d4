"""Drawing of a Pareto front: variants as numbered dots in a plane of two costs, with names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.analysis import style
from fedsim.analysis.report.axis import Axis
from fedsim.analysis.report.markup import Markup, el, join, plain
from fedsim.lab.compare.explore import CostPoint, ParetoFront
from fedsim.lab.compare.ranking import Ranking

_WIDTH = 400
_HEIGHT = 244
_LEFT = 44  # width for the ticks' texts at the left of the drawing
_RIGHT = _WIDTH - 8
_TOP = 24
_BOTTOM = _HEIGHT - 36
_INSET = 12  # distance of the outermost dots from the drawing's edges
_TICK = 4  # length of a tick
_MOST_TICKS = 5
_MOST_APART = 12  # ratio of costs above which an axis is logarithmic
_UNITS = {"s": style.TIMES, "bytes": style.BYTES, "J": style.JOULES}
_MIDDLE_OF_NUMBER = (3, -4)  # offset of a number's middle from the start of its text
# offsets of a number's text from the middle of its dot: at the four corners, above, and below
_CORNERS = ((7, -5), (7, 12), (-13, -5), (-13, 12), (-3, -9), (-3, 18))
_LONGEST_NAME = 160

_Position = tuple[float, float]


def draw_front(front: ParetoFront, colours: dict[int, str]) -> Markup:
    """Draw variants in a plane of two costs, as an SVG for a report, with names below.

    A variant is on the Pareto front if each other variant is worse in some cost, or equal in both.
    The variants on the front, and a few variants close to the front, have numbers.

    Args:
        front: costs of all variants, and the variants that are on the Pareto front.
        colours: index of a variant -> its CSS colour.
    """
    x_axis = _CostAxis.of(front.first, [point.first for point in front.points])
    y_axis = _CostAxis.of(front.second, [point.second for point in front.points])

    def position_of(point: CostPoint) -> _Position:
        return x_axis.x(point.first), y_axis.y(point.second)

    parts = [el("path", d=f"M{_LEFT} {_TOP} V{_BOTTOM} H{_RIGHT}", class_="axes")]
    parts += _ticks(x_axis, y_axis)
    parts.append(_steps([position_of(point) for point in front.front]))
    for point in front.points:
        x, y = position_of(point)
        is_on_front = point.factor == 1
        dot = el(
            "circle",
            el("title", plain(front.format_point(point), _LONGEST_NAME)),
            cx=x,
            cy=y,
            fill=colours[point.line.line_index] if is_on_front else None,
            stroke=colours[point.line.line_index],
            class_="colour" if is_on_front else "others",
            r=5 if is_on_front else 3.5,
        )
        parts.append(dot)
    numbered = [*front.front, *front.runners_up]
    dots = [position_of(point) for point in front.points]
    parts += _numbers([position_of(point) for point in numbered], dots)
    first, second = front.names
    parts.append(_text(y_axis.label(second), 2, 11, "start"))
    parts.append(_text(x_axis.label(first), (_LEFT + _RIGHT) / 2, _HEIGHT - 5, "middle"))
    drawing = el(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=front.words,
        class_="front",
    )
    return join(_title(front), drawing, _names(front, numbered))


@dataclass(frozen=True)
class _CostAxis:
    """Axis of a cost, in a unit that suits its values.

    Attributes:
        axis: the axis, whose ends are numbers of units.
        unit: the unit.
    """

    axis: Axis
    unit: style.AxisUnit

    @classmethod
    def of(cls, ranking: Ranking, costs: Sequence[float]) -> "_CostAxis":
        low = min(costs)
        high = max(costs)
        unit = style.AxisUnit(0.0, 1.0, ranking.measure.unit)
        if ranking.measure.unit in _UNITS:
            unit = style.unit_for(high, _UNITS[ranking.measure.unit])
        is_log = low > 0 and high > _MOST_APART * low
        return cls(Axis(low / unit.size, high / unit.size, is_log), unit)

    def x(self, cost: float) -> float:
        """Return the horizontal position of a cost in the drawing (SVG units)."""
        width = _RIGHT - _LEFT - 2 * _INSET
        return round(_LEFT + _INSET + self.axis.share(cost / self.unit.size) * width, 1)

    def y(self, cost: float) -> float:
        """Return the vertical position of a cost in the drawing (SVG units)."""
        height = _BOTTOM - _TOP - 2 * _INSET
        return round(_BOTTOM - _INSET - self.axis.share(cost / self.unit.size) * height, 1)

    def label(self, name: str) -> str:
        text = name
        if self.unit.name:
            text += f" ({self.unit.name})"
        if self.axis.is_log:
            text += ", log scale"
        return text


def _ticks(x_axis: _CostAxis, y_axis: _CostAxis) -> list[Markup]:
    """Return the ticks of both axes, with their values."""
    parts = []
    for tick in x_axis.axis.ticks(_MOST_TICKS):
        x = x_axis.x(tick * x_axis.unit.size)
        parts.append(el("path", d=f"M{x} {_BOTTOM} v{_TICK}", class_="axes"))
        parts.append(_text(f"{tick:,.4g}", x, _BOTTOM + 15, "middle"))
    for tick in y_axis.axis.ticks(_MOST_TICKS):
        y = y_axis.y(tick * y_axis.unit.size)
        parts.append(el("path", d=f"M{_LEFT} {y} h-{_TICK}", class_="axes"))
        parts.append(_text(f"{tick:,.4g}", _LEFT - _TICK - 3, y + 4, "end"))
    return parts


def _text(text: str, x: float, y: float, anchor: str) -> Markup:
    return el("text", text, x=x, y=y, text_anchor=anchor)


def _steps(positions: Sequence[_Position]) -> Markup:
    """Return a line of steps through the dots of the Pareto front."""
    first_x, first_y = positions[0]
    steps = " ".join(f"H{x} V{y}" for x, y in positions[1:])
    return el("path", d=f"M{first_x} {first_y} {steps}", class_="step")


def _numbers(positions: Sequence[_Position], dots: Sequence[_Position]) -> list[Markup]:
    """Return the number of each dot as a text, at the corner of the dot with the most room."""
    occupied = [*dots]
    numbers = []
    for number, (x, y) in enumerate(positions, start=1):
        corners = [(x + dx, y + dy) for dx, dy in _CORNERS]
        corner = max(corners, key=lambda corner: _room_at(corner, occupied))
        occupied.append(_middle(corner))
        numbers.append(el("text", str(number), x=corner[0], y=corner[1], class_="number"))
    return numbers


def _middle(corner: _Position) -> _Position:
    dx, dy = _MIDDLE_OF_NUMBER
    return corner[0] + dx, corner[1] + dy


def _room_at(corner: _Position, occupied: Sequence[_Position]) -> float:
    """Return the distance of a number at ``corner`` from the nearest dot or number, at most 5."""
    middle = _middle(corner)
    distances = [math.dist(middle, position) - 6 for position in occupied]
    return min(5.0, *distances)


def _title(front: ParetoFront) -> Markup:
    first, other = front.names
    remark = " the line joins those that no other beats in both; hollow: beaten"
    return el("p", el("strong", f"{first.capitalize()} against {other}"), el("small", remark))


def _names(front: ParetoFront, numbered: Sequence[CostPoint]) -> Markup:
    names = []
    for point in numbered:
        look = None if point.factor == 1 else "soft"
        names.append(el("li", plain(front.format_point(point), _LONGEST_NAME), class_=look))
    return el("ol", *names, class_="names")
