"""Logistic regression of scikit-learn's on its iris data."""

import warnings

import numpy as np
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression


def load_data(partition, partitions):
    x, y = load_iris(return_X_y=True)
    own = np.random.default_rng(7).permutation(len(y))[partition::partitions]
    return x[own], y[own]


def model(weights=None):
    made = LogisticRegression(max_iter=5, warm_start=True, C=1.0)
    made.classes_ = np.arange(3)
    made.coef_, made.intercept_ = weights or (np.zeros((3, 4)), np.zeros(3))
    return made


def fitted(made, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made.fit(x, y)
    return [made.coef_, made.intercept_]
