"""Fig. 2 of the CCS/RFedAvg paper (Wang, Zhang and Tao): one table a panel, four schemes each."""

from pathlib import Path

from scenarios.published.measures import early_accuracy, late_accuracy, mean_of
from scenarios.published.tables import Claim, Measure, Row, Table, World

HERE = Path(__file__).resolve().parent

RFEDAVG, OPTIMAL, KMEANS, FEDAVG = "rfedavg", "optimal", "kmeans", "fedavg"

SCHEMES: dict[str, tuple[str, tuple[str, ...]]] = {
    RFEDAVG: ("RFedAvg", ()),
    OPTIMAL: ("Optimal", ("strategy.weights=optimal",)),
    KMEANS: ("K-means", ("strategy.clustering=kmeans",)),
    FEDAVG: ("FedAvg", ("strategy.weights=uniform-by-data",)),
}
"""Label -> title, and changes to the scenario."""

# Every fifth round is tested.
FINAL = Measure("accuracy %, rounds 255 to 300", late_accuracy(10))
EARLY = Measure("accuracy %, rounds 5 to 100", early_accuracy(20))
LEAD = "points over RFedAvg, rounds 255 to 300"
PURITY = Measure("purity of the clusters, mean", mean_of("purity"), digits=3)

_LEADS = {  # as the text puts Fig. 2 (b) to (d) in numbers
    5: {KMEANS: -0.5, FEDAVG: -1.5, OPTIMAL: 0.5},
    2: {KMEANS: -1.0, FEDAVG: -3.0},
    1: {KMEANS: -8.0, FEDAVG: -10.0},
}
_BETTER = ((RFEDAVG, FEDAVG), (OPTIMAL, FEDAVG), (KMEANS, FEDAVG), (RFEDAVG, KMEANS), (OPTIMAL, RFEDAVG))


def panel(letter: str, classes: int, base: Path, tolerance: float | None) -> Table:
    """The four schemes with so many classes a device.

    Args:
        letter: of the panel.
        classes: B.
        base: the scenario file.
        tolerance: for the leads, in points; None: not judged.
    """
    lead = Measure(LEAD, late_accuracy(10), tolerance, minus=RFEDAVG)
    leads = _LEADS.get(classes, {})
    rows = tuple(
        Row(title, label, changes, {LEAD: leads[label]} if label in leads else {})
        for label, (title, changes) in SCHEMES.items()
    )
    name = f"{classes} class{'es' if classes > 1 else ''} a device"
    return Table(
        f"Fig. 2({letter}): {name}",
        World(f"{base.stem}-classes-{classes}", base, (f"data.partition.classes_per_device={classes}",)),
        (FINAL, lead, EARLY, *([PURITY] if classes == 1 else [])),
        rows,
        _alike() if classes == 10 else _ordered(),
        _NOTES.get(classes, ""),
    )


def _ordered() -> tuple[Claim, ...]:
    """What the paper says, or implies, of panels (b) to (d)."""
    pairs = [(SCHEMES[one][0], SCHEMES[other][0], one, other) for one, other in _BETTER]
    return (
        *(Claim(f"{one} ends above {other}", above, below) for one, other, above, below in pairs),
        *(Claim(f"{one} is above {other} early on", above, below, EARLY.name) for one, other, above, below in pairs),
    )


def _alike() -> tuple[Claim, ...]:
    """What it says of panel (a): no scheme ends higher, and RFedAvg is slower than two of them."""
    others = (OPTIMAL, KMEANS, FEDAVG)
    return (
        *(Claim(f"RFedAvg ends less than 1 point below {SCHEMES[one][0]}", RFEDAVG, one, by=-1.0) for one in others),
        *(Claim(f"RFedAvg ends less than 1 point above {SCHEMES[one][0]}", one, RFEDAVG, by=-1.0) for one in others),
        Claim("K-means converges faster than RFedAvg", KMEANS, RFEDAVG, EARLY.name),
        Claim("Optimal converges faster than RFedAvg", OPTIMAL, RFEDAVG, EARLY.name),
    )


_NOTES = {
    10: "The text says only that all end alike and that K-means and Optimal converge faster than RFedAvg.",
    1: "The text says *nearly to the Optimal*, without a number. With one class a device the true clusters are the classes.",
}


def panels(base: Path, tolerance: float | None) -> dict[str, Table]:
    """All panels."""
    letters = {10: "a", 5: "b", 2: "c", 1: "d"}
    return {f"classes-{classes}": panel(letter, classes, base, tolerance) for classes, letter in letters.items()}


def small() -> dict[str, Table]:
    """A perceptron instead of the convolutional network: about a minute a run."""
    return panels(HERE / "small.toml", None)


def full() -> dict[str, Table]:
    """A convolutional network of the published kind: about six minutes a run."""
    return panels(HERE / "full.toml", 1.5)
