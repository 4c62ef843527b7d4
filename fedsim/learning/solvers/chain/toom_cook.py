"""The matrices of fast convolution: polynomials are multiplied by their values at a few points.

Toom 1963 and Cook 1966; S. Winograd, Arithmetic Complexity of Computations, 1980; for images A. Lavin and S. Gray, Fast
Algorithms for Convolutional Neural Networks, CVPR 2016.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod

POINTS = (*map(Fraction, (0, 1, -1)), Fraction(1, 2), Fraction(-2), Fraction(-1, 2), Fraction(2))
"""Where polynomials are evaluated, besides infinity: of the choices tried, the one that loses the fewest digits."""

ONE = 1
"""Position of the point 1, where the value of a polynomial is the sum of its coefficients."""

Matrix = list[list[Fraction]]


def matrices(outputs: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """A [outputs, side], G [side, taps], B [side, side] with correlate(d, g) = A ((G g) (B d)), side = outputs + taps - 1."""
    points = POINTS[: outputs + taps - 2]
    values = [[point**power for point in points] + [Fraction(int(power == outputs - 1))] for power in range(outputs)]
    kernels = []
    signals = []
    for at, point in enumerate(points):
        others = points[:at] + points[at + 1 :]
        scale = prod((point - other for other in others), start=Fraction(1))
        kernels.append([point**power / scale for power in range(taps)])
        signals.append([*_expanded(others), Fraction(0)])
    kernels.append([Fraction(int(power == taps - 1)) for power in range(taps)])
    signals.append(_expanded(points))
    return values, kernels, signals


def _expanded(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), the constant one first."""
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [a - root * b for a, b in zip([Fraction(0), *coefficients], [*coefficients, Fraction(0)], strict=True)]
    return coefficients
