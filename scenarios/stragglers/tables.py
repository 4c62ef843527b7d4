"""The experiments of the CATA-Fed paper (Jeong and Kim, 2022, section 5): what varies in each, and what was published.

A setting is a label and a list of ``key=value`` changes to the base scenario, so that equal settings of two tables are one run.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """One curve of a figure or row of a table.

    Attributes:
        title: as the paper calls it.
        label: names its runs; equal labels mean equal changes.
        changes: ``key.path=value`` texts.
    """

    title: str
    label: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes:
        cohort: K.
        part: pi, the smallest part of a split data set.
        sizes: uniform data sizes, and the long tail.
        datasets: name -> changes.
    """

    cohort: int
    part: int
    sizes: dict[str, str]
    datasets: dict[str, tuple[str, ...]]


SMALL = Size(
    cohort=10,
    part=10,
    sizes={"uniform": "{kind='uniform', low=10, high=300}", "long-tail": "{kind='long-tail', scale=0.1}"},
    datasets={
        "mnist": ("data.source=mnist", "stop.rounds=60"),
        "fashion": ("data.source=fashion", "stop.rounds=60"),
        "cifar": ("data.source=cifar10", "stop.rounds=40", "training.lr=0.01", "data.partition.per_class=1000"),
    },
)

FULL = Size(
    cohort=40,
    part=100,
    sizes={"uniform": "{kind='uniform', low=100, high=3000}", "long-tail": "{kind='long-tail'}"},
    datasets={
        "mnist": ("data.source=mnist", "stop.rounds=100"),
        "fashion": ("data.source=fashion", "stop.rounds=300"),
        "cifar": ("data.source=cifar10", "stop.rounds=1000"),
    },
)

SIZES = {"small": SMALL, "full": FULL}


def deadline_text(deadline: float | None) -> str:
    """A relative deadline as the paper writes it."""
    return "inf" if deadline is None else f"{deadline:g}"


def baseline(size: Size, kind: str, deadline: float | None) -> str:
    """FedAVG(T) or FedProx(T): five epochs; the paper does not state FedProx's mu."""
    more = ", mu=0.01" if kind == "fedprox" else ""
    limit = "" if deadline is None else f", relative_deadline={deadline}"
    return f"strategy={{kind='{kind}', clients_per_round={size.cohort}, local_epochs=5{limit}{more}}}"


def cata(size: Size, deadline: float, clusters: int, selection: str) -> str:
    """CATA-Fed(T) with P clusters."""
    shape = f"clients_per_round={size.cohort}, local_epochs=5, relative_deadline={deadline}, smallest_part={size.part}"
    return f"strategy={{kind='cata-fed', {shape}, clusters={clusters}, selection='{selection}'}}"


def tifl(size: Size, tiers: int) -> str:
    """TiFL with uniform choice among tiers of equal width in data size, and FedAVG's deadline T = 1."""
    shape = f"clients_per_round={size.cohort}, local_epochs=5, relative_deadline=1.0"
    return f"strategy={{kind='tifl', {shape}, tiers={tiers}, mode='uniform'}}"


def world(size: Size, classes: int = 10, slow: float = 0.0, sizes: str = "uniform") -> tuple[str, tuple[str, ...]]:
    """A label and the changes for H classes a device, a share of half-speed devices, and data sizes."""
    changes = [f"data.partition.classes_per_device={classes}", f"data.partition.sizes={size.sizes[sizes]}"]
    if slow:
        changes.append(f"population.stragglers={{share={slow}, factor=0.5}}")
    return f"H{classes}-slow{round(100 * slow)}-{sizes}", tuple(changes)


def setting(title: str, strategy: str, strategy_label: str, where: tuple[str, tuple[str, ...]]) -> Setting:
    """A strategy in a world."""
    return Setting(title, f"{where[0]}/{strategy_label}", (*where[1], strategy))


def fedavg_setting(size: Size, deadline: float | None, where: tuple[str, tuple[str, ...]]) -> Setting:
    """FedAVG(T)."""
    text = deadline_text(deadline)
    return setting(f"FedAVG({text})", baseline(size, "fedavg", deadline), f"fedavg-T{text}", where)


def fedprox_setting(size: Size, deadline: float, where: tuple[str, tuple[str, ...]]) -> Setting:
    """FedProx(T)."""
    text = deadline_text(deadline)
    return setting(f"FedProx({text})", baseline(size, "fedprox", deadline), f"fedprox-T{text}", where)


def cata_setting(
    size: Size, where: tuple[str, tuple[str, ...]], deadline: float = 1.0, clusters: int = 1, selection: str = "random"
) -> Setting:
    """CATA-Fed(T), with clusters and a selection where they are not those of the deadline experiments."""
    tail = "" if selection == "random" else f", {'PF' if selection == 'proportional-fair' else 'RR'}({clusters})"
    label = f"cata-T{deadline:g}-{selection}-P{clusters}"
    return setting(f"CATA-Fed({deadline:g}{tail})", cata(size, deadline, clusters, selection), label, where)


def tifl_setting(size: Size, where: tuple[str, tuple[str, ...]], tiers: int = 4) -> Setting:
    """TiFL(P)."""
    return setting(f"TiFL({tiers})", tifl(size, tiers), f"tifl-{tiers}", where)


@dataclass(frozen=True)
class Experiment:
    """A figure or table.

    Attributes:
        title: what it is in the paper.
        datasets: which it was run on.
        settings: name -> setting.
    """

    title: str
    datasets: tuple[str, ...]
    settings: dict[str, Setting] = field(default_factory=dict)


def experiments(size: Size) -> dict[str, Experiment]:
    """All of them, at a size."""
    iid, biased, tail = world(size), world(size, classes=1), world(size, classes=1, sizes="long-tail")
    fair = "proportional-fair"
    everywhere, two = ("mnist", "fashion", "cifar"), ("fashion", "cifar")
    deadline = {"inf": fedavg_setting(size, None, iid)}
    for limit in (1.0, 0.5):
        deadline |= {f"fedavg {limit:g}": fedavg_setting(size, limit, iid)}
        deadline |= {f"fedprox {limit:g}": fedprox_setting(size, limit, iid)}
        deadline |= {f"cata {limit:g}": cata_setting(size, iid, limit)}
    slow = {}
    for share in (0.0, 0.1, 0.2):
        where = world(size, slow=share)
        slow |= {f"fedavg {share:g}": fedavg_setting(size, 1.0, where)}
        slow |= {f"fedprox {share:g}": fedprox_setting(size, 1.0, where)}
        slow |= {f"cata {share:g}": cata_setting(size, where)}
    clusters = {f"cata {p}": cata_setting(size, biased, clusters=p, selection=fair) for p in (8, 4, 2, 1)}
    clusters |= {"fedavg": fedavg_setting(size, 1.0, biased), "tifl": tifl_setting(size, biased)}
    fairness = {
        "pf 1": clusters["cata 1"],
        "random 1": cata_setting(size, biased),
        "pf 4": clusters["cata 4"],
        "rr 4": cata_setting(size, biased, clusters=4, selection="round-robin"),
    }
    bias = {}
    for classes in (10, 5, 2, 1):
        where = world(size, classes=classes)
        bias |= {f"cata {classes}": cata_setting(size, where, clusters=4, selection=fair)}
        bias |= {f"fedavg {classes}": fedavg_setting(size, 1.0, where), f"tifl {classes}": tifl_setting(size, where)}
    long_tail = {}
    for name, where in (("uniform", biased), ("tail", tail)):
        long_tail |= {f"cata {name}": cata_setting(size, where, clusters=8, selection=fair)}
        long_tail |= {f"fedavg {name}": fedavg_setting(size, 1.0, where), f"tifl {name}": tifl_setting(size, where)}
    return {
        "deadline": Experiment("Fig. 10 and Table 2: the deadline (IID, random selection)", everywhere, deadline),
        "slow": Experiment("Fig. 11: the share of half-speed devices (IID, random selection, T = 1)", two, slow),
        "clusters": Experiment("Fig. 12 and Table 3: the number of clusters (H = 1, T = 1)", two, clusters),
        "fairness": Experiment("Fig. 13: fairness of selection (H = 1, T = 1)", two, fairness),
        "bias": Experiment("Table 4: class bias (T = 1)", ("cifar",), bias),
        "long-tail": Experiment("Section 5.5: long-tail sizes (H = 1, T = 1)", two, long_tail),
    }


PUBLISHED_ROUND_SPEEDUPS = {  # section 5.2: rounds to the target, baseline / CATA-Fed(1), by data set
    "inf": {"mnist": 2.0, "fashion": 1.64, "cifar": 1.55},
    "fedavg 1": {"mnist": 2.27, "fashion": 2.28, "cifar": 2.42},
    "fedprox 1": {"mnist": 2.63, "fashion": 1.65, "cifar": 2.13},
}

PUBLISHED_PEAK_FALLS = {  # section 5.3: points of peak accuracy lost from 0 to 20 % slow devices
    "fedavg": {"fashion": 3.39, "cifar": 3.74},
    "fedprox": {"fashion": 0.72, "cifar": 2.91},
    "cata": {"fashion": 0.25, "cifar": 0.8},
}

PUBLISHED_LEVELS = {  # Tables 3 and 4: mean accuracy (%) and its variance over the last 50 rounds
    "clusters": {
        "cata 8": {"fashion": (85.34, 0.251), "cifar": (76.68, 0.228)},
        "cata 4": {"fashion": (85.09, 0.266), "cifar": (74.96, 0.188)},
        "cata 2": {"fashion": (84.52, 0.357), "cifar": (71.59, 0.529)},
        "cata 1": {"fashion": (82.06, 2.216), "cifar": (68.93, 0.721)},
        "fedavg": {"fashion": (75.94, 3.113), "cifar": (62.50, 10.876)},
        "tifl": {"fashion": (79.56, 1.157), "cifar": (66.48, 0.596)},
    },
    "bias": {
        "cata 10": {"cifar": (81.54, 0.029)},
        "cata 5": {"cifar": (79.45, 0.149)},
        "cata 2": {"cifar": (76.52, 0.216)},
        "cata 1": {"cifar": (74.96, 0.188)},
        "fedavg 10": {"cifar": (77.62, 0.326)},
        "fedavg 5": {"cifar": (73.81, 1.022)},
        "fedavg 2": {"cifar": (65.33, 2.608)},
        "fedavg 1": {"cifar": (62.50, 10.876)},
        "tifl 10": {"cifar": (76.65, 0.157)},
        "tifl 5": {"cifar": (72.91, 0.749)},
        "tifl 2": {"cifar": (69.58, 0.659)},
        "tifl 1": {"cifar": (66.48, 0.529)},
    },
}

PUBLISHED_JAIN = {"pf 1": 0.988, "random 1": 0.977, "rr 4": 0.878}  # Fig. 13a, at 40 selections a client
