"""A softmax regression on points around three centres, for other apps too; each partition has
its own share of the classes.
"""

import json

import numpy as np

CLASSES, FEATURES = 3, 4
_CENTRES = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)) * 2


def load_data(partition, partitions):
    draw = np.random.default_rng([partition, partitions])
    y = draw.integers(0, CLASSES, size=20 + 5 * (partition % 4))
    x = (_CENTRES[y] + draw.normal(size=(len(y), FEATURES))).astype(np.float32)
    return x, y


def initial(size=0):
    arrays = [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]
    return arrays + ([np.ones(size, np.float32)] if size else [])


def outputs(weights, x):
    scores = x @ weights[0] + weights[1]
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    return shares / shares.sum(axis=1, keepdims=True)


def train(weights, x, y, epochs, lr):
    weights = [np.array(each) for each in weights]
    loss = 0.0
    for _ in range(epochs):
        order = np.random.permutation(len(y))
        for at in np.array_split(order, max(1, len(y) // 8)):
            shares = outputs(weights, x[at])
            loss = float(-np.log(shares[np.arange(len(at)), y[at]]).mean())
            shares[np.arange(len(at)), y[at]] -= 1
            weights[0] -= (lr * x[at].T @ shares / len(at)).astype(np.float32)
            weights[1] -= (lr * shares.mean(axis=0)).astype(np.float32)
    return weights, loss


def test(weights, x, y):
    shares = outputs(weights, x)
    return float(-np.log(shares[np.arange(len(y)), y]).mean()), float(
        (shares.argmax(axis=1) == y).mean()
    )


def trees():
    """A model as XGBoost writes it, with one tree."""
    tree = {"id": 0, "left_children": [-1], "split_conditions": [0.5]}
    param = {"num_trees": "1", "num_parallel_tree": "1"}
    model = {
        "gbtree_model_param": param,
        "iteration_indptr": [0, 1],
        "trees": [tree],
        "tree_info": [0],
    }
    written = json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode()
    return [np.frombuffer(written, np.uint8)]
