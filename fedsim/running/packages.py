"""Installed plug-in packages that define parts of a scenario, such as its strategy."""

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from pydantic import BaseModel


def packages_of(scenario: BaseModel) -> dict[str, str]:
    """Find the parts of a scenario, such as its strategy, that installed plug-in packages define.

    Args:
        scenario: the validated scenario, or one of its tables.

    Returns:
        Name and version of the package by the key of the part, ``{"strategy.kind": "acme 1.2"}``.
    """
    modules = dict(_find_modules(scenario, ""))  # key of a part -> top-level module of its class
    if not modules:
        return {}
    distributions = packages_distributions()
    packages = {}
    for key, module in modules.items():
        names = distributions.get(module, ())
        if names:
            packages[key] = f"{names[0]} {version(names[0])}"
    return packages


def is_installed(package: str) -> bool:
    """Return whether a package is installed in exactly this version.

    Args:
        package: name and version, such as ``acme 1.2``.
    """
    name, _, required_version = package.rpartition(" ")
    try:
        return version(name) == required_version
    except (PackageNotFoundError, ValueError):
        return False


def _find_modules(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield each ``kind`` in a scenario that names a class of another package than fedsim.

    Import paths of users' code are skipped.

    Args:
        value: the scenario, or a value in it.
        key: dotted key of ``value`` with a dot at the end; empty for the whole scenario.

    Yields:
        Dotted key of the ``kind``, and the top-level module of the class.
    """
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", None)
        module = type(value).__module__.partition(".")[0]
        is_name = isinstance(kind, str) and ":" not in kind  # False for an import path
        is_fedsims = module == __name__.partition(".")[0]
        if is_name and not is_fedsims:
            yield f"{key}kind", module
        for name in type(value).model_fields:
            yield from _find_modules(getattr(value, name), f"{key}{name}.")
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _find_modules(entry, f"{key}{name}.")
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from _find_modules(entry, f"{key}{number}.")
