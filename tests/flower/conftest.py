"""Flower collects garbage in the middle of a round: what is there before the tests begin need not be looked through."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    gc.collect()
    gc.freeze()
