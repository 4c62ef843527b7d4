"""Warnings about kinds of devices, such as phones, with too little memory to train the model."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedsim.common.units import show_bytes
from fedsim.running.assembly import Run
from fedsim.world.rooflines import Rooflines


@dataclass
class _MemoryShortage:
    """Counts of the devices of one kind that have too little memory to train all layers.

    Attributes:
        failing: count of devices that cannot train at all.
        with_fewer_layers: count of devices that train only the last layers of the model.
        needed_bytes: greatest memory that a training of all layers needs (bytes).
        layer_counts: how many layers the devices of ``with_fewer_layers`` train, one value for each
            group of devices with equal needs.
    """

    failing: int = 0
    with_fewer_layers: int = 0
    needed_bytes: float = 0.0
    layer_counts: list[int] = field(default_factory=list)


def device_memory_lines(run: Run) -> list[str]:
    """Return up to two lines for the user on each kind of device that lacks memory for training.

    The list is empty if all devices have enough memory, or if the scenario states no memory.

    Args:
        run: a run that has not begun.
    """
    rooflines = run.population.rooflines
    if rooflines is None:
        return []
    return list(_lines(run, rooflines))


def _lines(run: Run, rooflines: Rooflines) -> Iterator[str]:
    """Yield up to two lines on each kind of device that lacks memory for training.

    One is on devices that train only the last layers, one on devices that cannot train at all.

    Args:
        run: a run that has not begun.
        rooflines: the memory that trainings need, and the memory of each kind of device.
    """
    trainable = run.population.trainable
    are_refused = run.scenario.population.short_of_memory == "refuse"
    for kind, shortage in _find_shortages(run, rooflines).items():
        count = int((rooflines.which[:trainable] == kind).sum())
        devices = f"of {count} devices of kind {run.capacity.names[kind]!r}"
        memory = show_bytes(rooflines.kinds[kind].training_memory)
        needed_memory = show_bytes(shortage.needed_bytes)
        devices_and_memory = f"{devices} have {memory} for a training that takes {needed_memory}"
        if shortage.with_fewer_layers:
            least = min(shortage.layer_counts)
            most = max(shortage.layer_counts)
            layers = str(least) if least == most else f"{least} to {most}"
            consequence = f"they train the last {layers} of {rooflines.layers} layers"
            yield f"{shortage.with_fewer_layers} {devices_and_memory}: {consequence}"
        if shortage.failing:
            consequence = "their tasks end for lack of memory"
            if are_refused:
                consequence = "they are never admitted"
            yield f"{shortage.failing} {devices_and_memory}: {consequence}"


def _find_shortages(run: Run, rooflines: Rooflines) -> dict[int, _MemoryShortage]:
    """Find the devices that have too little memory to train all layers of the model.

    Args:
        run: a run that has not begun.
        rooflines: the memory that trainings need, and the memory of each kind of device.

    Returns:
        Index of a kind of device -> counts of its devices that lack memory.
    """
    population = run.population
    batch_sizes = None
    if population.own is not None:
        batch_sizes = population.own.batch_size
    shortages: dict[int, _MemoryShortage] = {}
    # a group has devices of one kind whose trainings need equal memory
    for group in rooflines.groups(population.samples, batch_sizes):
        needed_bytes = rooflines.needed(group.training, group.samples)
        if needed_bytes <= rooflines.kinds[group.kind].training_memory:
            continue
        shortage = shortages.setdefault(group.kind, _MemoryShortage())
        shortage.needed_bytes = max(shortage.needed_bytes, needed_bytes)
        # devices from ID ``trainable`` on are only tested
        members = int((group.devices < population.trainable).sum())
        fitted = rooflines.fit(group.kind, group.training, group.samples)
        if fitted.layers is None:
            shortage.failing += members
        else:
            shortage.with_fewer_layers += members
            shortage.layer_counts.append(fitted.layers)
    return shortages
