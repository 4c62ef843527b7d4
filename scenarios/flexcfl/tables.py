"""The experiments of the FlexCFL paper (Duan et al., 2021): what varies in each, and what was published.

Tables III and IV and Figures 3, 5 and 6 share runs. All grouped strategies sweep first, as in the published experiments.
"""

from dataclasses import replace
from pathlib import Path

from scenarios.published.measures import (
    best_accuracy,
    early_accuracy,
    mean_of,
    median_accuracy,
    rounds_to,
    traffic,
    variance_of,
)
from scenarios.published.tables import Claim, Measure, Row, Table, World

HERE = Path(__file__).resolve().parent

# Worlds.

MNIST_MCLR = World("mnist-mclr", HERE / "mnist_mclr.toml")
MNIST_MLP = World("mnist-mlp", HERE / "mnist_mlp.toml")
FASHION_MLP = World("fashion-mlp", HERE / "fashion_mlp.toml")
FASHION_CNN = World("fashion-cnn", HERE / "fashion_mlp.toml", ("model.kind=fashion-cnn", "training.l2=0.0"))
SYNTHETIC = World("synthetic-mclr", HERE / "synthetic_mclr.toml")
FEMNIST_MCLR = World("femnist-mclr", HERE / "femnist_mclr.toml")
FEMNIST_MLP = World("femnist-mlp", HERE / "femnist_mclr.toml", ("model.kind=femnist-mlp",))
FEMNIST_CNN = World("femnist-cnn", HERE / "femnist_mclr.toml", ("model.kind=femnist-cnn",))

_OFF = "learning=off"
MNIST_BYTES = World("mnist-bytes", HERE / "mnist_mclr.toml", (_OFF,))
# For bytes only labels matter, so MNIST's digits stand for the letters, in FEMNIST's partition.
FEMNIST_BYTES = World("femnist-bytes", HERE / "femnist_mclr.toml", (_OFF, "model.kind=femnist-mlp", "data.source=mnist"))
FASHION_BYTES = World("fashion-bytes", HERE / "fashion_mlp.toml", (_OFF, "model.kind=fashion-cnn"))

# Measures.

BEST = Measure("best accuracy %", best_accuracy, tolerance=1.5)
UNJUDGED = Measure("best accuracy %", best_accuracy)  # of another model than the published one, or a figure without number
DISCREPANCY = Measure("mean discrepancy", mean_of("discrepancy"), digits=3)
TRAIN_LOSS = Measure("mean training loss", mean_of("train_loss"), digits=3)

# Strategies: title, label, what stands in [strategy] besides the groups and K = 20, E = 10.

Strategy = tuple[str, str, str]

FEDAVG: Strategy = ("FedAvg", "fedavg", "kind='fedavg'")
FEDPROX: Strategy = ("FedProx, mu = 1", "fedprox", "kind='fedprox', mu=1.0")
IFCA: Strategy = ("IFCA, mean", "ifca", "kind='ifca'")
IFCA_FIRST: Strategy = ("IFCA, first update only", "ifca-first", "kind='ifca', aggregation='first'")
IFCA_MIG: Strategy = ("IFCA-MIG, mean", "ifca-mig", "kind='ifca-mig', shift_metric='oracle'")
IFCA_MIG_FIRST: Strategy = (
    "IFCA-MIG, first update only",
    "ifca-mig-first",
    "kind='ifca-mig', shift_metric='oracle', aggregation='first'",
)
FESEM: Strategy = ("FeSEM, mean", "fesem", "kind='fesem'")
FESEM_FIRST: Strategy = ("FeSEM, first update only", "fesem-first", "kind='fesem', aggregation='first'")
FESEM_MIG: Strategy = ("FeSEM-MIG", "fesem-mig", "kind='fesem-mig'")
RCC: Strategy = ("RCC (random centers)", "rcc", "kind='flexcfl', cold_start='random-centers'")
RAC: Strategy = ("RAC (random groups for newcomers)", "rac", "kind='flexcfl', newcomers='random'")
FEDGROUP: Strategy = ("FedGroup", "fedgroup", "kind='fedgroup'")
FLEXCFL: Strategy = ("FlexCFL", "flexcfl", "kind='flexcfl'")
FLEXCFL_SORTED: Strategy = (
    "FlexCFL, test on sorted counts",
    "flexcfl-sorted",
    "kind='flexcfl', shift_metric='sorted_counts'",
)

_ROUND = "clients_per_round=20, local_epochs=10"
_WITHOUT_GROUPS = (FEDAVG, FEDPROX)


def with_eta(eta_g: float) -> Strategy:
    """FlexCFL with a learning rate between groups; 0 is FlexCFL itself."""
    return (f"FlexCFL, eta_g = {eta_g:g}", f"flexcfl-eta{eta_g:g}", f"kind='flexcfl', eta_g={eta_g}") if eta_g else FLEXCFL


# Shifts: label, rule, whether strategies with groups shift the data of those alone who were asked before.

Drift = tuple[str, str, bool]

SWAP_ALL: Drift = ("swap-all", "kind='swap-all'", True)
SWAP_PART: Drift = ("swap-part", "kind='swap-part'", True)
INCREMENTAL: Drift = ("incremental", "kind='incremental'", False)
INCREMENTAL_AS_PUBLISHED: Drift = ("incremental-as-published", "kind='incremental', as_published=true", False)


def row(
    strategy: Strategy,
    groups: int,
    published: float | None = None,
    drift: Drift | None = None,
    *,
    tolerance: float | None = None,
    measure: Measure = BEST,
) -> Row:
    """A strategy with so many groups, in a world whose data may drift."""
    title, label, text = strategy
    grouped = strategy not in _WITHOUT_GROUPS
    changes = [f"strategy={{{text}, {f'groups={groups}, ' if grouped else ''}{_ROUND}}}"]
    if drift is not None:
        name, rule, of_selected = drift
        label = f"{name}/{label}"
        changes.append(f"drift={{{rule}, among='{'selected' if grouped and of_selected else 'all'}'}}")
    return Row(title, label, tuple(changes), {} if published is None else {measure.name: published}, tolerance)


# Table I.

_TABLE_I = (
    Measure("discrepancy, mean", mean_of("discrepancy"), tolerance=0.15, digits=3),
    Measure("discrepancy, variance", variance_of("discrepancy"), digits=4),
    Measure("discrepancy before the aggregation, mean", mean_of("discrepancy_start"), digits=3),
    Measure("best accuracy %", best_accuracy, tolerance=1.5, digits=1),
    Measure("median accuracy %", median_accuracy, tolerance=3.0, digits=1),
    Measure("rounds to 85 %", rounds_to(85.0), digits=1),
)
_TABLE_I_CHANGES = ("training.l2=0.0", "strategy.local_epochs=20", "evaluation.from_round=0")
_TABLE_I_PUBLISHED = {  # discrepancy mean and variance, best and median accuracy, rounds to 85 %
    1: (0.767, 0.11, 87.9, 79.3, 39),
    3: (0.767, 0.073, 90.9, 87.0, 14),
    5: (0.685, 0.021, 91.3, 90.0, 10),
    10: (0.627, 0.0082, 92.2, 91.5, 4),
}


def heterogeneity() -> Table:
    """Table I and Fig. 1: FedAvg with 1, 3, 5 and 10 classes a device."""
    names = [measure.name for measure in _TABLE_I if measure.name != "discrepancy before the aggregation, mean"]
    rows = tuple(
        Row(
            "10 classes (IID)" if classes == 10 else f"{classes} {'class' if classes == 1 else 'classes'}",
            f"no-l2/classes-{classes}",
            (f"data.partition.classes_per_device={classes}", *_TABLE_I_CHANGES),
            dict(zip(names, figures, strict=True)),
        )
        for classes, figures in _TABLE_I_PUBLISHED.items()
    )
    variance, best, rounds = "discrepancy, variance", "best accuracy %", "rounds to 85 %"
    return Table(
        "Table I: FedAvg with few classes a device, MNIST, logistic regression, E = 20",
        MNIST_MCLR,
        _TABLE_I,
        rows,
        (
            Claim("the discrepancy is larger with 1 class than IID", "no-l2/classes-1", "no-l2/classes-10"),
            Claim("the discrepancy varies more with 1 class than with 3", "no-l2/classes-1", "no-l2/classes-3", variance),
            Claim("the discrepancy varies more with 3 classes than IID", "no-l2/classes-3", "no-l2/classes-10", variance),
            Claim("the best accuracy is higher IID than with 1 class", "no-l2/classes-10", "no-l2/classes-1", best),
            Claim("1 class needs more rounds to 85 % than IID", "no-l2/classes-1", "no-l2/classes-10", rounds),
        ),
        "The discrepancy is measured after the aggregation, as in the published code; Eq. 3 says before. A run that never "
        "reaches 85 % counts with all its rounds. Without L2, of which the paper says nothing: with the 0.001 of the published "
        "code, which the other tables use, best accuracies are 0.6 (IID) to 1.4 points (1 class) lower. How sizes are "
        "distributed is not published for this table; ours is the power law of the other tables.",
    )


# Table III, and what Fig. 3 says about it.

_COLUMNS = (FEDAVG, FEDPROX, IFCA_FIRST, FESEM_FIRST, RCC, RAC, FLEXCFL, with_eta(0.1))
_MEANS = (IFCA, FESEM)  # what the paper describes; its code applies the first update only


def no_shift(
    title: str, world: World, groups: int, published: tuple[float, ...], measure: Measure = BEST, note: str = ""
) -> Table:
    """A row of Table III, which becomes a table; ``published`` in the order of ``_COLUMNS``."""
    rows = [
        row(strategy, groups, figure, measure=measure, tolerance=2.5 if strategy is RAC and measure.tolerance else None)
        for strategy, figure in zip(_COLUMNS, published or (None,) * len(_COLUMNS), strict=True)
    ]
    rows += [row(strategy, groups) for strategy in _MEANS]
    better = (
        (FLEXCFL, FEDAVG),
        (FLEXCFL, FEDPROX),
        (FLEXCFL, FESEM_FIRST),
        (FLEXCFL, FESEM),
        (FLEXCFL, IFCA_FIRST),
        (FLEXCFL, IFCA),
        (FLEXCFL, RCC),
        (RCC, FESEM_FIRST),
        (RCC, FESEM),
        (FEDAVG, RAC),
    )
    claims = tuple(Claim(f"{one[0]} is better than {other[0]}", one[1], other[1]) for one, other in better)
    return Table(f"Table III: {title}", world, (measure,), tuple(rows), claims, note)


def curves() -> Table:
    """What the text reads off Fig. 3(a): discrepancy and training loss."""
    strategies = (FEDAVG, FEDPROX, FLEXCFL, IFCA)
    low, high = "the discrepancy of {} is higher than that of FedProx", "the training loss of FedProx is higher than that of {}"
    claims = [Claim(low.format(other[0]), other[1], "fedprox") for other in strategies if other is not FEDPROX]
    claims += [
        Claim(high.format(other[0]), "fedprox", other[1], TRAIN_LOSS.name) for other in strategies if other is not FEDPROX
    ]
    rows = tuple(row(strategy, 3) for strategy in strategies)
    return Table("Fig. 3(a): MNIST, logistic regression", MNIST_MCLR, (DISCREPANCY, TRAIN_LOSS), rows, tuple(claims))


# Table IV.

_SHIFT_COLUMNS = (FEDAVG, IFCA_FIRST, FESEM_FIRST, FEDGROUP, FLEXCFL, with_eta(5.0))


def shifted(drift: Drift, title: str, published: tuple[float, ...], note: str = "") -> Table:
    """A part of Table IV, MNIST-MCLR; ``published`` in the order of ``_SHIFT_COLUMNS``."""
    figures = zip(_SHIFT_COLUMNS, published or (None,) * len(_SHIFT_COLUMNS), strict=True)
    rows = [row(strategy, 3, figure, drift) for strategy, figure in figures]
    rows += [row(IFCA, 3, None, drift)]
    claims = [
        _claim(drift, FLEXCFL, FEDAVG),
        _claim(drift, FLEXCFL, IFCA_FIRST),
        _claim(drift, FLEXCFL, IFCA),
        _claim(drift, FLEXCFL, FESEM_FIRST),
    ]
    if drift[2]:
        claims.append(_claim(drift, FLEXCFL, FEDGROUP))
    else:
        labels = f"{drift[0]}/fedgroup", f"{drift[0]}/flexcfl"
        claims.append(Claim("FedGroup is less than 1 point below FlexCFL", *labels, by=-1.0))
    if drift is SWAP_ALL:
        rows += [row(IFCA_MIG_FIRST, 3, 91.8, drift), row(IFCA_MIG, 3, None, drift), row(FLEXCFL_SORTED, 3, None, drift)]
        claims.append(_claim(drift, IFCA_MIG_FIRST, FEDAVG))
    if drift[2]:
        rows += [
            Row(f"{one.title}, no shift", one.label, one.changes)
            for one in (row(FEDAVG, 3), row(IFCA_FIRST, 3), row(FLEXCFL, 3))
        ]
        claims += [
            Claim("FedAvg falls by less than 1 point from no shift", f"{drift[0]}/fedavg", "fedavg", by=-1.0),
            Claim("IFCA falls from no shift", "ifca-first", f"{drift[0]}/ifca-first"),
            Claim("FedGroup falls from no shift", "flexcfl", f"{drift[0]}/fedgroup"),
        ]
    return Table(f"Table IV, {title}: MNIST, logistic regression", MNIST_MCLR, (BEST,), tuple(rows), tuple(claims), note)


def _claim(drift: Drift, one: Strategy, other: Strategy) -> Claim:
    return Claim(f"{one[0]} is better than {other[0]}", f"{drift[0]}/{one[1]}", f"{drift[0]}/{other[1]}")


# The learning rate between groups.


_EARLY = Measure("mean accuracy % of the 50 rounds after the sweep", early_accuracy(50))
_STEADY = Measure("variance of accuracy after the sweep, points^2", lambda folder: 1e4 * variance_of("accuracy")(folder))


def rates(title: str, world: World, groups: int, drift: Drift | None, values: tuple[float, ...], note: str = "") -> Table:
    """FlexCFL with several eta_g, the first of them 0."""
    titled = [(f"eta_g = {value:g}", row(with_eta(value), groups, None, drift)) for value in values]
    none, *others = rows = tuple(Row(title, one.label, one.changes) for title, one in titled)
    if drift is None:
        claims = [Claim(f"{one.title} converges faster than 0", one.label, none.label, _EARLY.name) for one in others]
    else:
        claims = [Claim(f"{one.title} is better than 0", one.label, none.label) for one in others]
        claims += [Claim(f"{one.title} is steadier than 0", none.label, one.label, _STEADY.name) for one in others]
    return Table(title, world, (UNJUDGED, _EARLY, _STEADY), rows, tuple(claims), note)


# Fig. 6.


def bytes_moved(
    title: str,
    world: World,
    groups: int,
    drift: Drift,
    over_fedavg: dict[Strategy, float],
    over_flexcfl: float | None = None,
) -> Table:
    """A part of Fig. 6, with nothing learnt; ``over_flexcfl`` is what eta_g adds."""
    strategies = (FEDAVG, FESEM, FESEM_MIG, IFCA, IFCA_MIG, FLEXCFL, with_eta(5.0))
    own, beside = (Measure(f"bytes / {one[0]}", traffic, 0.005, f"{drift[0]}/{one[1]}", digits=4) for one in (FEDAVG, FLEXCFL))
    rows = [
        row(strategy, groups, over_fedavg.get(strategy), drift, tolerance=0.1 if strategy is IFCA_MIG else None, measure=own)
        for strategy in strategies
    ]
    if over_flexcfl is not None:
        last = rows.pop()
        rows.append(replace(last, published={beside.name: over_flexcfl}))
    measures = (own,) if over_flexcfl is None else (own, beside)
    return Table(f"Fig. 6{title}", world, measures, tuple(rows), (), _BYTES)


_BYTES = (
    "Bytes as the paper counts them: models and updates, without the initial model sent to cold devices, ids and scalars. "
    "Nothing is learnt in these runs; choices that need values are random."
)
_FIRST = (
    "*First update only*: for IFCA and FeSEM the published code of FlexCFL applies only the update of the member asked "
    "first; *mean* is what the paper and the methods' own authors describe."
)
_AS_PUBLISHED = "Data vanish here, as in the published code: devices hold n/4, n/8, 3n/32 and 3n/32 of their n samples."
_ALREADY = "*IFCA-MIG*: the paper says +1.9 points over FedAvg, which is 91.8 %."
_STANDS_IN = "An MLP stands in for the paper's CNN, so the published figures are beside ours only for the order of the rows."


def small() -> dict[str, Table]:
    """What a processor can run: up to a minute a run with logistic regression, some minutes with an MLP."""
    eta = (0.0, 0.01, 0.1, 1.0)
    eta_shifted = (0.0, 0.1, 1.0, 5.0, 10.0)
    return {
        "heterogeneity": heterogeneity(),
        "no-shift": no_shift(
            "MNIST, logistic regression", MNIST_MCLR, 3, (89.4, 90.9, 94.2, 84.6, 93.4, 88.2, 95.8, 95.2), note=_FIRST
        ),
        "curves": curves(),
        "swap-all": shifted(SWAP_ALL, "swap all", (89.9, 64.5, 84.7, 87.1, 95.1, 89.1), _ALREADY),
        "swap-part": shifted(SWAP_PART, "swap part", (89.2, 85.0, 83.6, 86.3, 91.7, 90.2)),
        "incremental": shifted(INCREMENTAL, "incremental", (89.9, 90.2, 84.5, 95.1, 95.1, 89.1)),
        "incremental-as-published": shifted(
            INCREMENTAL_AS_PUBLISHED,
            "incremental, as the published code releases data",
            (89.9, 90.2, 84.5, 95.1, 95.1, 89.1),
            _AS_PUBLISHED,
        ),
        "bytes-mnist": bytes_moved(
            "(a): bytes, MNIST, logistic regression, swap all",
            MNIST_BYTES,
            3,
            SWAP_ALL,
            {FEDAVG: 1.0, FESEM: 1.0, FESEM_MIG: 1.0, IFCA_MIG: 5.48, FLEXCFL: 1.26},
        ),
        "bytes-femnist": bytes_moved(
            "(b): bytes, FEMNIST, MLP, swap part", FEMNIST_BYTES, 5, SWAP_PART, {}, over_flexcfl=1.114
        ),
        "bytes-fashion": bytes_moved("(c): bytes, Fashion-MNIST, CNN, incremental", FASHION_BYTES, 5, INCREMENTAL, {}),
        "eta-g": rates("Fig. 3(d): the rate between groups, MNIST, MLP, no shift", MNIST_MLP, 3, None, eta),
        "eta-g-swap-part": rates(
            "Fig. 5: the rate between groups, swap part",
            MNIST_MCLR,
            3,
            SWAP_PART,
            eta_shifted,
            "MNIST with logistic regression stands in for the paper's FEMNIST with an MLP.",
        ),
        "no-shift-mlp": no_shift("MNIST, MLP", MNIST_MLP, 3, (92.7, 94.5, 95.8, 89.8, 96.2, 91.6, 97.0, 96.6)),
        "no-shift-fashion": no_shift(
            "Fashion-MNIST, MLP",
            FASHION_MLP,
            5,
            (89.2, 89.1, 90.9, 81.3, 91.2, 85.0, 92.6, 92.4),
            UNJUDGED,
            _STANDS_IN,
        ),
        "no-shift-synthetic": no_shift(
            "Synthetic(1,1), logistic regression",
            SYNTHETIC,
            5,
            (),
            UNJUDGED,
            "Published figures are not quoted here. With 100 devices all are pre-trained, so RAC is FlexCFL.",
        ),
        "no-shift-femnist": no_shift(
            "FEMNIST, logistic regression", FEMNIST_MCLR, 5, (74.9, 76.7, 85.8, 43.7, 88.8, 67.0, 90.1, 86.0)
        ),
        "eta-g-femnist": rates(
            "Fig. 5: the rate between groups, FEMNIST, MLP, swap part", FEMNIST_MLP, 5, SWAP_PART, eta_shifted
        ),
    }


def full() -> dict[str, Table]:
    """What needs a GPU: the convolutional models."""
    return {
        "no-shift-fashion-cnn": no_shift(
            "Fashion-MNIST, CNN", FASHION_CNN, 5, (89.2, 89.1, 90.9, 81.3, 91.2, 85.0, 92.6, 92.4)
        ),
        "no-shift-femnist-cnn": no_shift("FEMNIST, CNN", FEMNIST_CNN, 5, (95.2, 96.3, 98.1, 57.3, 98.7, 86.1, 98.7, 98.5)),
    }
