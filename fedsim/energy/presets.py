"""Power draw of devices by name: phones as ``presets.toml`` has them, and some of the kinds of ``device_kinds.toml``."""

from pathlib import Path

from fedsim.world.device_kinds import KIND_POWERS, Figure, catalogue, figures, find_kind

_PHONES = Path(__file__).with_suffix(".toml")

TITLES = catalogue(_PHONES) | dict.fromkeys(("raspberry-pi-4", "jetson-nano", "laptop"), "the kind of device of that name")
"""Name -> what it is, of every preset."""


def coefficients(name: str) -> dict[str, float]:
    """Draw of a preset: ``fedsim.meters.energy.COEFFICIENTS`` (W, J a byte, s), as far as they are not 0."""
    if name in catalogue(_PHONES):
        return {key: figure.value for key, figure in preset_figures(name).items()}
    kind = find_kind(name, {}, "energy.preset")
    return {draws: getattr(kind, key) for draws, key in KIND_POWERS.items()}


def preset_figures(name: str) -> dict[str, Figure]:
    """The figures of a preset with their sources: W, J a byte, s."""
    if name in catalogue(_PHONES):
        return figures(name, "energy.preset", _PHONES)
    return {key: figure for key, figure in figures(name, "energy.preset").items() if key in KIND_POWERS.values()}
