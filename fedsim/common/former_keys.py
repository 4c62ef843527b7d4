"""Former keys of scenarios: keys that an earlier version had, and their replacements.

One dict for each table of a scenario has its former keys. A spec refuses the former keys of its
table (``Spec.instead``) with a message that names the replacement. ``understand`` converts the
scenario of a run folder, which an earlier version wrote with all its keys, to the present keys.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

Table = dict[str, Any]
"""A table of a scenario, as TOML has it: key -> value."""


class Removed(NamedTuple):
    """Marks a former key of a scenario that has no present key in its place.

    Attributes:
        left: the value of the key with which earlier versions behaved as this version always does;
            mostly the former default. None if earlier versions behaved so without the key.
    """

    left: object


Former = Mapping[str, str | Removed]
"""Former key of a table -> its replacement, a present key or a key and value, or ``Removed``."""

TRAINING: Former = {"init": Removed("glorot")}
DATA: Mapping[str, str] = {"normalise": "normalize"}  # ``DataSpec`` reads the former name too
POWER_LAW: Former = {"sigma": Removed(2.0), "minimum_per_class": Removed(5)}
FEMNIST: Former = {"classes_per_device": Removed(3), "per_class": Removed(4000)}
DITTO: Former = {"seed": Removed(233), "classes_per_device": Removed(5)}
CLASS_IMBALANCE: Former = {"mean": Removed(5.0), "variance": Removed(10.0)}
PERMUTATIONS: Former = {"test": Removed("whole")}
QUANTILE: Former = {"slack": Removed(1.2)}
ROUNDS: Former = {
    "relative_deadline": "deadline.times",
    "reference_epochs": "deadline.epochs",
    "deadline_base": "deadline.devices",
    "deadline_from": "deadline.since",
}
GROUPS: Former = {"sweep": "follows"}
MIGRATION: Former = {
    "dynamic": "moment.shift",
    "shift_metric": "moment.shift",
    "shift_threshold": Removed(0.2),
}
CFL: Former = {
    "split_step": "follows",
    "eps1_relative": "eps1",
    "eps2_ratio": "eps2",
    "min_cluster_size": Removed(2),
    "first_split_round": Removed(0),
}
IFCA: Former = {"starts": Removed("different")}
FLEXCFL: Former = {
    "alpha": "moment.devices",
    "pretrain_iterations": "moment.steps",
    "pretrain_epochs": "moment.epochs",
    "newcomers": "moment.newcomers",
    "on_arrival": "moment.newcomers",
    "cold_start": "measure",
    "epochs_after_cold_start": "follows",
    "inter_group": "follows",
}
LCFL: Former = {
    "metric": "measure",
    "warmup": "moment",
    "warmup_rounds": "moment.rounds",
    "warmup_participation": "moment.participation",
    "warmup_epochs": "moment.epochs",
    "warmup_iterations": "moment.steps",
    "local_start": "moment.start",
    "exchange_deadline": "moment.deadline",
    "exchange_attempts": Removed(3),
    "clustering": "clusterer",
    "start": "clusterer.start",
    "eps": Removed(None),
    "min_samples": Removed(5),
}
TIFL: Former = {
    "profiling_rounds": Removed(1),
    "profiling_limit": Removed(None),
    "require_no_improvement": Removed(True),
    "accuracy_from": Removed("clients"),
    "test_clients": Removed(5),
}
CATA_FED: Former = {
    "reserve_upload": "upload_time",
    "most_epochs": Removed(1000),
    "margin": Removed("0 s"),
    "whisker": Removed(1.5),
    "rejoin_delay": Removed("1 min"),
}
FEDBUFF: Former = {"server_lr": "server.lr"}

OF_PARTITIONS: Mapping[str, Former] = {
    "power-law": POWER_LAW,
    "femnist": FEMNIST,
    "ditto": DITTO,
    "class-imbalance": CLASS_IMBALANCE,
    "permutations": PERMUTATIONS,
}
"""Kind of a partition -> former keys of its table."""

OF_STRATEGIES: Mapping[str, Former] = {
    "cfl": {**GROUPS, **CFL},
    "fesem": GROUPS,
    "fesem-mig": GROUPS,
    "ifca": {**GROUPS, **MIGRATION, **IFCA},
    "ifca-mig": {**GROUPS, **MIGRATION, **IFCA},
    "flexcfl": {**GROUPS, **MIGRATION, **FLEXCFL},
    "fedgroup": {**GROUPS, **MIGRATION, **FLEXCFL},
    "lcfl": LCFL,
    "tifl": TIFL,
    "cata-fed": CATA_FED,
    "fedbuff": FEDBUFF,
}
"""Kind of a strategy -> former keys of its table, in addition to the keys in ``ROUNDS``."""

_FLUID: Table = {
    "kind": "fluid",
    "segment": "1448 B",
    "header": "0 B",
    "slow_start": False,
    "initial_window": 10,
    "round_trip": "0 s",
    "weight_spread": 1.0,
    "turns": False,
    "weight_by_round_trip": 0.0,
    "late_weight": 1.0,
}

_ADDED: Mapping[str, Table] = {
    "training": {"kind": "sgd", "last_batch": "keep"},
    "network": {"protocol": _FLUID},
}
"""Table -> keys that were added since, with values that behave as the earlier version did."""

_ADDED_TO_STRATEGIES: Mapping[str, Table] = {
    "fedasync": {"staleness": "polynomial", "alpha_decay_at": []},
    "ifca": {"averaging": "models"},
    "ifca-mig": {"averaging": "models"},
    "cata-fed": {"cut_epoch": "kept", "size_reports": "largest"},
}
"""Kind of a strategy -> keys that were added to its table since, with values as in ``_ADDED``."""

_ROUNDS_KEYS = {"reference_epochs", "deadline_base"}
"""Keys that the earlier version wrote for each strategy in rounds, also for users' strategies."""

_PLAIN_DEADLINE = ("flexcfl", "fedgroup", "lcfl")
"""Strategies whose deadline is now always a time (s) from the begin of a round."""


class Understood(NamedTuple):
    """Scenario of an earlier version, converted to the keys of this version.

    Attributes:
        tables: the scenario.
        is_former: whether the scenario had keys of an earlier version.
        lost: former keys with values that the present keys cannot express, as text such as
            ``training.init = 'torch'``.
    """

    tables: Table
    is_former: bool
    lost: list[str]


def understand(tables: Table) -> Understood:
    """Convert the scenario of a run folder to the present keys.

    A scenario without former keys is returned unchanged. A former value that the present keys
    cannot express is replaced by the nearest possible value, and named in ``lost``.

    Args:
        tables: the scenario as it was written, with the defaults of that version.
    """
    present = deepcopy(tables)
    lost: list[str] = []
    try:
        is_former = _convert(present, lost)
    except (AttributeError, KeyError, TypeError):  # the file is damaged; its reader reports that
        is_former = False
    if not is_former:
        return Understood(tables, is_former=False, lost=[])
    return Understood(present, is_former=True, lost=lost)


def _convert(tables: Table, lost: list[str]) -> bool:
    """Replace the former keys of a scenario in place, and return whether it had any.

    If there is a former key, the scenario is of an earlier version. It then also gets the keys that
    were added since, with values with which this version behaves as the earlier one did.

    Args:
        tables: the scenario; nothing is changed if it has no former key.
        lost: list to which former keys and values are appended that present keys cannot express.
    """
    # find the tables that may have former keys
    training = _FormerTable(tables.get("training", {}), "training", TRAINING, lost)
    data = tables.get("data", {})
    partition_table = data.get("partition", {})
    partition_kind = str(partition_table.get("kind"))
    former_of_partition = OF_PARTITIONS.get(partition_kind, {})
    partition = _FormerTable(partition_table, "data.partition", former_of_partition, lost)
    strategy_table = tables["strategy"]
    kind = str(strategy_table["kind"])  # kind of the strategy
    strategy = _FormerTable(strategy_table, "strategy", OF_STRATEGIES.get(kind, {}), lost)
    deadline_table = strategy_table.get("deadline")
    if not isinstance(deadline_table, dict):  # the value is a time, or means that none is set
        deadline_table = {}
    former_of_deadline = QUANTILE if deadline_table.get("kind") == "quantile" else {}
    deadline = _FormerTable(deadline_table, "strategy.deadline", former_of_deadline, lost)

    # a user's strategy class may have keys whose names are former names of fedsim's keys
    is_users = ":" in kind
    has_former = [
        # tables [training] of earlier versions had no key ``kind``
        training.has_former and "kind" not in training.table,
        partition.has_former,
        deadline.has_former,
        strategy.has_former,
        not is_users and not ROUNDS.keys().isdisjoint(strategy_table),
        not DATA.keys().isdisjoint(data),
    ]
    if not any(has_former):
        return False

    # replace the keys, table by table
    _convert_data(data)
    _convert_population(tables.get("population", {}), lost)
    # if a user's strategy has only some keys of these names, they may be keys of the user's
    if not is_users or strategy_table.keys() >= _ROUNDS_KEYS:
        _convert_deadline(strategy, kind)
    if kind in _CONVERSIONS:
        _CONVERSIONS[kind](strategy, tables)
    if kind == "fedprox" and "deadline" not in strategy_table:
        strategy_table.pop("partial_work", None)  # the key had no effect without a deadline
    for table in (training, partition, deadline, strategy):
        table.remove_former()

    # add the keys that the earlier version did not have
    for name, added in _ADDED.items():
        if name in tables:
            tables[name] = {**deepcopy(added), **tables[name]}
    tables["strategy"] = {**deepcopy(_ADDED_TO_STRATEGIES.get(kind, {})), **strategy_table}
    return True


class _FormerTable:
    """A table of a scenario that is converted in place.

    Args:
        table: the table.
        name: its dotted name.
        former: former keys that the table may have, and their replacements.
        lost: list to which former keys and values are appended that present keys cannot express.
    """

    def __init__(self, table: Table, name: str, former: Former, lost: list[str]) -> None:
        self.table = table
        self._name = name
        self._former = former
        self._lost = lost

    @property
    def has_former(self) -> bool:
        """Whether the table has any of its former keys."""
        return not self._former.keys().isdisjoint(self.table)

    def take(self, key: str, default: Any = None) -> Any:
        """Remove a former key from the table, and return its value; ``default`` if it is absent."""
        return self.table.pop(key, default)

    def drop(self, *keys: str) -> None:
        """Remove former keys that had no effect, and therefore need no replacement."""
        for key in keys:
            self.table.pop(key, None)

    def note_lost(self, key: str, value: object) -> None:
        """Append a former key and its value, which present keys cannot express, to ``lost``."""
        value_text = str(value).lower() if isinstance(value, bool) else repr(value)
        self._lost.append(f"{self._name}.{key} = {value_text}")

    def remove_former(self) -> None:
        """Remove the former keys that are not converted yet.

        Each key is appended to ``lost`` with its value, unless this version always behaves as with
        this value.
        """
        for key, replacement in self._former.items():
            if key not in self.table:
                continue
            value = self.take(key)
            if not isinstance(replacement, Removed) or value != replacement.left:
                self.note_lost(key, value)


def _convert_data(data: Table) -> None:
    if "normalise" in data:
        data["normalize"] = data.pop("normalise")
    if data.get("normalize") == "standardise":
        data["normalize"] = "standardize"


def _convert_population(population: Table, lost: list[str]) -> None:
    """Convert the former values of ``[population]``, in place.

    A number as ``jitter``, or as ``factor`` of stragglers, becomes a constant distribution. A
    schedule of arrivals or departures without the key ``devices`` is appended to ``lost``: the
    earlier version drew the devices at random, which present keys cannot express.
    """
    stragglers = population.get("stragglers", {})
    for table, key in ((population, "jitter"), (stragglers, "factor")):
        if isinstance(table.get(key), int | float):
            table[key] = {"kind": "constant", "value": table[key]}
    for key in ("arrivals", "departures"):
        schedule = population.get(key, {})
        if schedule.get("kind") == "schedule" and "devices" not in schedule:
            lost.append(f"population.{key} of kind 'schedule' without 'devices'")


def _convert_deadline(strategy: _FormerTable, kind: str) -> None:
    """Replace the former keys of a deadline, such as ``relative_deadline``, by ``deadline``.

    If this version's strategy no longer has such a deadline, the former key is noted as lost too.

    Args:
        strategy: the table ``[strategy]``.
        kind: kind of the strategy.
    """
    # The former deadline was a multiple of the mean time that ``devices`` need for ``epochs``
    # epochs. It began at the event ``since``.
    times = strategy.take("relative_deadline")
    epochs = strategy.take("reference_epochs", 5)
    devices = strategy.take("deadline_base", "unslowed")
    since = strategy.take("deadline_from")
    deadline = strategy.table.get("deadline")
    if times is not None:
        strategy.table["deadline"] = {
            "kind": "relative",
            "times": times,
            "epochs": epochs,
            "devices": devices,
            "since": since or "download",
        }
        if kind in _PLAIN_DEADLINE:
            strategy.note_lost("relative_deadline", times)
    elif since == "download" and deadline is not None:
        strategy.table["deadline"] = {"kind": "fixed", "time": deadline, "since": since}
        if kind in _PLAIN_DEADLINE:
            strategy.note_lost("deadline_from", since)


def _convert_shift(strategy: _FormerTable) -> Table:
    """Remove the former keys that said after which shifts of data devices change their group.

    Returns:
        ``{"shift": value}``, the replacement of these keys in the table ``strategy.moment``; empty
        if the value is this strategy's default.
    """
    shift = strategy.take("shift_metric", "aligned_l1")
    is_dynamic = strategy.take("dynamic", default=False)
    if not is_dynamic:  # no device changed its group
        strategy.drop("shift_threshold")
        shift = "never"
    default = "aligned_l1" if strategy.table["kind"] in ("flexcfl", "ifca-mig") else "never"
    return {} if shift == default else {"shift": shift}


def _convert_cfl(strategy: _FormerTable, tables: Table) -> None:
    """Replace the former keys of the strategy CFL: ``split_step`` becomes ``follows``.

    Thresholds that had no effect are dropped.
    """
    table = strategy.table
    is_paper = strategy.take("split_step", "children") == "parent"
    table["follows"] = "paper" if is_paper else "published-code"
    if strategy.take("sweep", default=False):
        strategy.note_lost("sweep", value=True)
    if "split_rounds" in table:  # the rounds of splits were given, not found by thresholds
        strategy.drop("eps1", "eps2", "eps1_relative", "eps2_ratio")
    # A threshold that was not given was derived from a factor. This version has a fixed factor.
    factors = (("eps1", "eps1_relative", 0.2), ("eps2", "eps2_ratio", 2.5))
    for threshold, former_key, present_factor in factors:
        factor = strategy.take(former_key, present_factor)
        if threshold not in table and factor != present_factor:
            strategy.note_lost(former_key, factor)


def _convert_fesem(strategy: _FormerTable, tables: Table) -> None:
    strategy.table["follows"] = "published-code"
    if not strategy.take("sweep", default=True):
        strategy.note_lost("sweep", value=False)


def _convert_ifca(strategy: _FormerTable, tables: Table) -> None:
    follows = "published-code" if strategy.take("sweep", default=True) else "paper"
    strategy.table["follows"] = follows
    strategy.table["moment"] = {"kind": "each-round", **_convert_shift(strategy)}


def _convert_flexcfl(strategy: _FormerTable, tables: Table) -> None:
    """Replace the former keys of the strategy FlexCFL.

    The keys about pre-training and newcomers become the table ``moment``, ``cold_start`` becomes
    ``measure`` (and ``clusterer``), and ``epochs_after_cold_start`` becomes ``follows``.
    """
    table = strategy.table
    table["moment"] = _take_pre_training(strategy, tables)

    cold_start = strategy.take("cold_start", "edc")
    if cold_start == "random-centers":
        table["clusterer"] = {"kind": "random"}
        table["measure"] = "edc"
    else:
        table["measure"] = cold_start

    # Three former keys become ``follows``: ``epochs_after_cold_start`` decides, and a value of the
    # other two that contradicts it is lost.
    is_paper = strategy.take("epochs_after_cold_start", "full") == "less"
    table["follows"] = "paper" if is_paper else "published-code"
    sweep = strategy.take("sweep", default=True)
    if sweep == is_paper:
        strategy.note_lost("sweep", sweep)
    inter_group = strategy.take("inter_group", "normalised")
    is_literal = inter_group == "literal"
    if table.get("eta_g") and is_literal != is_paper:
        strategy.note_lost("inter_group", inter_group)


def _take_pre_training(strategy: _FormerTable, tables: Table) -> Table:
    """Remove FlexCFL's former keys of pre-training and newcomers.

    Args:
        strategy: the table ``[strategy]``.
        tables: the whole scenario.

    Returns:
        The table ``strategy.moment``, which replaces these keys.
    """
    moment: Table = {"kind": "pre-training", **_convert_shift(strategy)}
    moment["devices"] = strategy.take("alpha", 20)
    steps = strategy.take("pretrain_iterations")
    epochs = strategy.take("pretrain_epochs", 1)
    if steps is None:
        moment["epochs"] = epochs
    else:
        moment["steps"] = steps
    newcomers = strategy.take("newcomers", "cosine")
    on_arrival = strategy.take("on_arrival", default=True)
    has_newcomers = "arrivals" in tables.get("population", {})
    if newcomers == "random":
        moment["newcomers"] = "random"
        if on_arrival and has_newcomers:
            strategy.note_lost("on_arrival", value=True)
    else:
        moment["newcomers"] = "arrival" if on_arrival else "selection"
    return moment


_LCFL_MEASURES = {"grad-cos": "update-cos"}  # LCFL's former "grad-cos" compared whole updates


def _convert_lcfl(strategy: _FormerTable, tables: Table) -> None:
    """Replace the former keys of the strategy LCFL.

    ``metric`` becomes ``measure``, ``clustering`` becomes ``clusterer``, the keys about warm-up and
    exchange become the table ``moment``, and ``start`` becomes ``follows`` or ``clusterer.start``.
    """
    table = strategy.table
    metric = strategy.take("metric", "lcfl")
    table["measure"] = _LCFL_MEASURES.get(metric, metric)
    table["moment"] = _take_warm_up(strategy)
    table["clusterer"] = {"kind": strategy.take("clustering", "k-medoids")}
    start = strategy.take("start", "build")
    table["follows"] = "paper"
    match table["clusterer"]["kind"]:
        case "k-medoids" if start == "heuristic":
            table["follows"] = "published-code"
        case "k-medoids":
            table["clusterer"]["start"] = start
        case "hierarchical":
            table["clusterer"]["linkage"] = "average"
    if table["clusterer"]["kind"] != "dbscan":
        strategy.drop("eps", "min_samples")


def _take_warm_up(strategy: _FormerTable) -> Table:
    """Remove LCFL's former keys of warm-up and exchange.

    Returns:
        The table ``strategy.moment``, which replaces these keys.
    """
    rounds = strategy.take("warmup_rounds")
    participation = strategy.take("warmup_participation")
    epochs = strategy.take("warmup_epochs")
    steps = strategy.take("warmup_iterations")
    start = strategy.take("local_start")
    deadline = strategy.take("exchange_deadline")
    warm_up = strategy.take("warmup", "federated")
    if warm_up == "federated":
        moment: Table = {"kind": "rounds", "rounds": rounds, "participation": participation}
    else:
        moment = {"kind": "local", "start": start, "epochs": epochs, "steps": steps}
    moment["deadline"] = deadline
    return {key: value for key, value in moment.items() if value is not None}


def _convert_tifl(strategy: _FormerTable, tables: Table) -> None:
    """Drop former keys of the strategy TiFL that had no effect with the values of other keys."""
    if strategy.table.get("tiers_from") != "latency":
        strategy.drop("profiling_rounds", "profiling_limit")
    if strategy.table.get("mode") != "credits":
        strategy.drop(
            "credits", "interval", "require_no_improvement", "accuracy_from", "test_clients"
        )
    elif strategy.table.get("accuracy_from") == "measurement":
        strategy.drop("test_clients")


def _convert_cata_fed(strategy: _FormerTable, tables: Table) -> None:
    reserved = strategy.take("reserve_upload", default=False)
    strategy.table["upload_time"] = "reserved" if reserved else "ignored"
    if not strategy.table.get("rejoin"):
        strategy.drop("rejoin_delay")
    if not strategy.table.get("adaptive", True):
        strategy.drop("most_epochs")


def _convert_fedbuff(strategy: _FormerTable, tables: Table) -> None:
    rate = strategy.take("server_lr", 1.0)
    if rate != 1.0:
        strategy.table["server"] = {"kind": "sgd", "lr": rate, "momentum": 0.0}


_CONVERSIONS: Mapping[str, Callable[[_FormerTable, Table], None]] = {
    "cfl": _convert_cfl,
    "fesem": _convert_fesem,
    "fesem-mig": _convert_fesem,
    "ifca": _convert_ifca,
    "ifca-mig": _convert_ifca,
    "flexcfl": _convert_flexcfl,
    "fedgroup": _convert_flexcfl,
    "lcfl": _convert_lcfl,
    "tifl": _convert_tifl,
    "cata-fed": _convert_cata_fed,
    "fedbuff": _convert_fedbuff,
}
"""Kind of a strategy -> function that replaces its former keys, given the whole scenario too.

``_FormerTable.remove_former`` then removes the former keys that the function has left.
"""
