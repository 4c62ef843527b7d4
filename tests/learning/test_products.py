"""Products of strided operands against sums in float64, and that no bit depends on what else is multiplied."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsim.learning.solvers.products import multiply


def _spread(draw: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers with gaps between the rows, and with the axes but the last in another order in memory."""
    *outer, last = shape
    room = torch.randn(*outer[::-1], last + 3, generator=draw, dtype=dtype)
    return room.permute(*range(len(outer))[::-1], len(outer))[..., 1 : last + 1]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=["float32", "float64"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_product_is_the_sum_of_its_terms(data: st.DataObject, dtype: torch.dtype, tolerance: float) -> None:
    t, y, x, u, v = (data.draw(st.integers(1, most)) for most in (3, 5, 9, 3, 20))
    columns, add, draw = data.draw(st.integers(1, 70)), data.draw(st.booleans()), torch.Generator().manual_seed(1)
    a, b, c = (
        _spread(draw, dtype, t, y, x, u, v),
        _spread(draw, dtype, t, u, v, columns),
        _spread(draw, dtype, t, y, x, columns),
    )
    whole, before = c._base, c.clone()
    assert whole is not None
    outside = whole.clone()
    outside.as_strided(c.shape, c.stride(), c.storage_offset()).zero_()
    multiply(a, b, c, add=add)
    expected = torch.einsum("tyxuv,tuvj->tyxj", a.double(), b.double()) + before.double() * add
    assert float((c - expected).abs().max()) <= tolerance * (u * v + 1) * float(expected.abs().max() + 1)
    alone = torch.zeros(1, 1, 1, 1, dtype=dtype) + before[-1, -1, -1, -1]
    multiply(a[-1:, -1:, -1:], b[-1:, ..., -1:], alone, add=add)
    assert alone.item() == c[-1, -1, -1, -1].item()
    c.zero_()
    assert torch.equal(whole, outside)


def test_products_into_one_place_follow_each_other() -> None:
    draw = torch.Generator().manual_seed(2)
    a, b = torch.randn(4, 1, 11, 1, 6, generator=draw), torch.randn(4, 1, 6, 19, generator=draw)
    at_once, in_turn = torch.zeros(1, 11, 19), torch.zeros(1, 1, 11, 19)
    multiply(a, b, at_once.expand(4, -1, -1, -1), add=True)
    for t in range(4):
        multiply(a[t : t + 1], b[t : t + 1], in_turn, add=True)
    assert torch.equal(at_once, in_turn[0])


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    a, b, c = torch.ones(1, 1, 9, 1, 2), torch.ones(1, 1, 2, 17), torch.zeros(1, 1, 9, 17)
    a[0, 0, 3, 0, 1], b[0, 0, 0, 5] = float("nan"), float("inf")
    multiply(a, b, c)
    expected = torch.full((9, 17), 2.0)
    expected[:, 5] = float("inf")
    expected[3] = float("nan")
    assert torch.equal(c[0, 0].nan_to_num(-1), expected.nan_to_num(-1))
