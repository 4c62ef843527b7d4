"""Former names of public methods, keywords and fields, which still work."""

import warnings
from collections.abc import Iterable
from typing import TypedDict


class FormerKeywords(TypedDict, total=False):
    """Keywords that the constructor of ``Training`` took in earlier versions, and still accepts."""

    epochs: int
    steps: int | None
    only_batch: int | None
    full_batch: bool
    mu: float
    anchor: object
    last_gradient: bool


FIELDS_OF_TRAINING = {
    "epochs": "amount=LocalEpochs(...)",
    "steps": "amount=LocalSteps(...)",
    "only_batch": "amount=LocalSteps(..., only_batch=...)",
    "full_batch": "batch_size=ALL_SAMPLES",
    "mu": "proximal=Proximal(...)",
    "anchor": "proximal=Proximal(..., anchor=...)",
    "last_gradient": "result='last-gradient'",
}
"""Former keyword and field of ``Training`` -> present keyword."""


def warn_renamed(former: str, present: str) -> None:
    """Warn the caller that a method was called by its former name.

    Args:
        former: the former name, such as ``Clients.online``.
        present: the present name.
    """
    warnings.warn(f"{former} is called {present} now", DeprecationWarning, stacklevel=3)


def warn_keywords(keywords: Iterable[str]) -> None:
    """Warn the caller of ``Training`` that its keywords have other names now.

    Args:
        keywords: the former keywords of the call.
    """
    for keyword in keywords:
        message = f"Training({keyword}=...) is called {FIELDS_OF_TRAINING[keyword]} now"
        warnings.warn(message, DeprecationWarning, stacklevel=4)
