"""Former names of public methods, which still work."""

import warnings


def warn_renamed(former: str, present: str) -> None:
    """Warn the caller of a method by its former name.

    Args:
        former: the former name, such as ``Clients.online``.
        present: the present name.
    """
    warnings.warn(f"{former} is called {present} now", DeprecationWarning, stacklevel=3)
