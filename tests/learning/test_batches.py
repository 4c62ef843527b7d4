import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsim.learning.solvers.batches import shuffled, steps, width


@given(st.integers(0, 200), st.integers(1, 150), st.integers(0, 4), st.integers(0, 99))
def test_each_epoch_is_a_permutation_with_its_last_partial_batch(n: int, batch_size: int, epochs: int, seed: int) -> None:
    batches = shuffled(np.random.default_rng(seed), n, batch_size, epochs)
    assert batches.steps == steps(n, batch_size, epochs, None) == epochs * -(-n // batch_size)
    assert batches.rows.shape == (batches.steps, width(n, batch_size))
    for epoch in np.split(np.arange(batches.steps), epochs) if batches.steps else []:
        rows = [batches.rows[step, : batches.counts[step]] for step in epoch]
        assert sorted(np.concatenate(rows)) == list(range(n))
        assert all(len(row) == batch_size for row in rows[:-1])
        assert all((batches.rows[step, batches.counts[step] :] == n).all() for step in epoch)
    assert batches.last_epoch == max(0, batches.steps - -(-n // batch_size))


def test_epochs_are_shuffled_anew() -> None:
    batches = shuffled(np.random.default_rng(1), 50, 50, 2)
    assert (batches.rows[0] != batches.rows[1]).any()


def test_iterations_cut_the_last_epoch_short() -> None:
    batches = shuffled(np.random.default_rng(1), 25, 10, epochs=1, iterations=8)
    assert batches.counts.tolist() == [10, 10, 5, 10, 10, 5, 10, 10]
    assert batches.last_epoch == 6
    assert shuffled(np.random.default_rng(1), 25, 10, epochs=1, iterations=2).counts.tolist() == [10, 10]


def test_a_full_batch_is_no_wider_than_it_must_be() -> None:
    assert (width(6, 10), width(6, 10**6), width(70, 10**6), width(100, 100)) == (10, 64, 128, 100)
