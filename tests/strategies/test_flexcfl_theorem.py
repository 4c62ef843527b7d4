"""FlexCFL's Theorem 1, numerically: how far a group's model is from that of a virtual one that has all of its data."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.strategies.clustered import file_data, ran, world

LR = 0.1

Floats = NDArray[np.float64]


def gradient(w: Floats, x: Floats, y: Floats) -> Floats:
    """Of the mean cross-entropy of two classes, at logits W x + b; w is [2, features + 1], x has a column of ones."""
    logits = x @ w.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return (shares - np.eye(2)[y.astype(int)]).T @ x / len(x)  # type: ignore[no-any-return]


def loss(w: Floats, x: Floats, y: Floats) -> float:
    logits = x @ w.T
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y.astype(int)]).mean())


@pytest.mark.parametrize("epochs", [1, 2, 5, 10])
def test_a_group_stays_within_the_bound_of_its_virtual_model(epochs: int, tmp_path: Path) -> None:
    """|F_g(w) - F_g(v)| <= delta M / L ((eta L + 1)^E - 1) after E full-batch steps of each client, from one start.

    Two clients of equal size are the group. delta, the largest distance of a client's gradient from the group's, is taken over
    the path of the virtual model; L and M, which hold everywhere, follow from the samples: the Hessian is at most half of
    their moments, a gradient at most the root of two times a sample's length. One step leaves nothing between the two models.
    """
    draw = np.random.default_rng(3)
    shards = []
    for shift in (-0.5, 0.5):
        x = draw.normal(size=(20, 3)) + shift
        shards.append((x, (x[:, 0] * shift > 0).astype(np.int64)))
    strategy = {"kind": "fedavg", "clients_per_round": 2, "local_epochs": epochs, "aggregation": "mean"}
    training = {"lr": LR, "batch_size": 100}
    run = ran(world(file_data(tmp_path / "data", shards), 2, strategy, 1, training=training), tmp_path / "run")
    before = ran(
        world(file_data(tmp_path / "data", shards), 2, strategy | {"local_epochs": 1}, 1, training=training | {"lr": 1e-12}),
        tmp_path / "before",
    )
    (w, start) = (np.column_stack([*map(np.atleast_2d, tensors(folder))]) for folder in (run, before))
    data = [(np.column_stack([x.astype(np.float32), np.ones(len(x))]), y.astype(float)) for x, y in shards]
    whole = np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data])
    v, delta = start.copy(), 0.0
    for _ in range(epochs):
        of_group = gradient(v, *whole)
        delta = max(delta, *(float(np.linalg.norm(gradient(v, *own) - of_group)) for own in data))
        v = v - LR * of_group
    lipschitz = max(0.5 * float(np.linalg.eigvalsh(x.T @ x / len(x)).max()) for x, _ in (*data, whole))
    slope = float(np.sqrt(2) * np.linalg.norm(whole[0], axis=1).max())
    bound = delta * slope / lipschitz * ((LR * lipschitz + 1) ** epochs - 1)
    apart = abs(loss(w, *whole) - loss(v, *whole))
    assert apart <= bound
    assert apart <= 1e-6 if epochs == 1 else apart > 1e-6


def tensors(run: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The kernel [2, 3], and the bias as a column."""
    found = run.models()["global"]  # type: ignore[attr-defined]
    kernel = next(value for name, value in found.items() if name.endswith("weight"))
    bias = next(value for name, value in found.items() if name.endswith("bias"))
    return kernel.astype(np.float64), bias.astype(np.float64)[:, None]
