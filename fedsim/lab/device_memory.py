"""Kinds of devices that have too little memory for the training of a scenario."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedsim.common.units import show_bytes
from fedsim.running.assembly import Run
from fedsim.world.rooflines import Rooflines


@dataclass
class _ShortKind:
    """Devices of a kind with too little memory for all layers of the model.

    Attributes:
        failing: count of devices that cannot train at all.
        fewer: count of devices that train fewer layers.
        needed: greatest memory that a training of all layers needs (bytes).
        layers: counts of layers that the devices train.
    """

    failing: int = 0
    fewer: int = 0
    needed: float = 0.0
    layers: list[int] = field(default_factory=list)


def device_memory_lines(run: Run) -> list[str]:
    """Return a line for the user for each kind of device with too little memory for the training.

    Args:
        run: a run that has not begun.
    """
    rooflines = run.population.rooflines
    if rooflines is None:
        return []
    return list(_lines(run, rooflines))


def _lines(run: Run, rooflines: Rooflines) -> Iterator[str]:
    trainable = run.population.trainable
    refuses = run.scenario.population.short_of_memory == "refuse"
    for kind, short in _find_short(run, rooflines).items():
        count = int((rooflines.which[:trainable] == kind).sum())
        room = show_bytes(rooflines.kinds[kind].room)
        begin = f"have {room} for a training that takes {show_bytes(short.needed)}"
        if short.fewer:
            few = min(short.layers)
            most = max(short.layers)
            layers = str(few) if few == most else f"{few} to {most}"
            devices = f"{short.fewer} of {count} devices of kind {run.capacity.names[kind]!r}"
            yield f"{devices} {begin}: they train the last {layers} of {rooflines.layers} layers"
        if short.failing:
            devices = f"{short.failing} of {count} devices of kind {run.capacity.names[kind]!r}"
            end = "they are never admitted" if refuses else "their tasks end for lack of memory"
            yield f"{devices} {begin}: {end}"


def _find_short(run: Run, rooflines: Rooflines) -> dict[int, _ShortKind]:
    """Find the devices that have too little memory to train all layers of the model.

    Args:
        run: a run that has not begun.
        rooflines: the memory that trainings need, and the memory of each kind of device.

    Returns:
        Index of a kind of device -> counts of its devices that lack memory.
    """
    population = run.population
    sizes = None
    if population.own is not None:
        sizes = population.own.batch_size
    kinds: dict[int, _ShortKind] = {}
    for group in rooflines.groups(population.samples, sizes):
        needed = rooflines.needed(group.training, group.samples)
        if needed <= rooflines.kinds[group.kind].room:
            continue
        short = kinds.setdefault(group.kind, _ShortKind())
        short.needed = max(short.needed, needed)
        members = int((group.devices < population.trainable).sum())
        fitted = rooflines.fit(group.kind, group.training, group.samples)
        if fitted.layers is None:
            short.failing += members
        else:
            short.fewer += members
            short.layers.append(fitted.layers)
    return kinds
