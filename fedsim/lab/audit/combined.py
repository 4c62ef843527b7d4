"""Checks that updates were combined by the strategy's rule, with the weights of that rule."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import values_at_rows
from fedsim.lab.audit.strategies import UPDATES_ARE_MODELS

_ROUNDING = 1e-9
_EQUAL_WEIGHTS = ("mean", "median", "trimmed-mean", "private")
"""Kinds of aggregation that give all updates the same weight."""

_BY_DISTANCE = {"krum": (2, 3), "multi-krum": (2, 3), "bulyan": (4, 3)}
"""Dict from distance-based aggregation to (a, b): f of n may be malicious if n >= a f + b."""

_BY_STALENESS = ("ca2fl", "fedasync", "fedbuff", "fedcompass")
"""Strategies without rounds, whose weights follow from staleness or from the buffer's size."""

_SAME_SIZES = ("label-permutation", "rotation")
"""Kinds of data shift that do not change the sample count of any device."""


class _Aggregate(NamedTuple):
    """Record of an aggregation of updates, as the run wrote it.

    The n-th entries of all lists belong to the same update: the ID of its task, its weight, its
    staleness (rounds or versions), and how often its client was drawn.
    """

    tasks: list[int]
    weights: list[float] | None
    staleness: list[int] | None
    tolerated: float  # malicious updates that a robust aggregation tolerates; NaN if not recorded
    round: int
    draws: list[int] | None  # how often each client was drawn, with replacement

    @property
    def draw_counts(self) -> Floats:
        """Number of draws of each update's client, 1 if not recorded; float64 [updates]."""
        return np.array(self.draws or np.ones(len(self.tasks)), dtype=np.float64)


_WeightFunction = Callable[[_Aggregate, Floats], Floats | None]
"""Function from the record of an aggregation, and its recorded weights, to the expected weights."""


def check_weights(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each aggregation whose recorded weights break the strategy's rule.

    A user's own strategy and Flower apps are not checked.
    """
    kind = evidence.run.scenario["strategy"]["kind"]
    if ":" in kind or kind == "flower":
        return
    rule = _WeightRule(evidence)
    aggregates = evidence.data_of("aggregate").join(evidence.events["round"])
    columns = [*_Aggregate._fields]  # also names of the columns of ``aggregates``
    for row, *cells in aggregates[columns].itertuples():
        aggregate = _Aggregate(*cells)
        if not aggregate.tasks:
            continue
        problem = rule.find_problem(aggregate)
        if problem is not None:
            yield f"record {row} (aggregate): {problem}"


class _WeightRule:
    """Rule by which a scenario's strategy weighs updates, to compare with the recorded weights.

    ``find_problem`` has to be called for all aggregations in the order of the run, because some
    rules depend on earlier aggregations.

    Args:
        evidence: the run folder.
    """

    def __init__(self, evidence: Evidence) -> None:
        scenario = evidence.run.scenario
        self._strategy: TomlTable = scenario["strategy"]
        self._kind: str = self._strategy["kind"]
        self._aggregation: TomlTable = self._strategy.get("aggregation", {"kind": "weighted"})
        # ``paper`` if FeSEM weighs as in its paper; folders of earlier versions call the key ``as``
        self._follows = self._strategy.get("follows", self._strategy.get("as"))
        # learning rate of FedBuff's server, by which earlier versions multiplied recorded weights
        self._former_rate = 1.0
        if evidence.run.understood.is_former and self._kind == "fedbuff":
            self._former_rate = self._strategy.get("server", {}).get("lr", 1.0)
        self._device_count = evidence.trainable
        # whether a round may draw a client several times; an update counts once for each draw
        selection = self._strategy.get("selection")
        self._is_with_replacement = isinstance(selection, dict) and selection.get(
            "replacement", False
        )
        self._is_learning = scenario.get("learning") == "on"
        # no model or update had a value that is NaN or infinite
        self._all_finite = not (evidence.events["kind"] == "non-finite").any()
        starts = evidence.events[evidence.events["kind"] == "task-start"]
        self._round_of_task = dict(
            zip(starts["task"].tolist(), starts["round"].tolist(), strict=True)
        )
        self._device_of_task = dict(
            zip(starts["task"].tolist(), starts["device"].tolist(), strict=True)
        )
        self._received_from = set[int]()  # devices whose updates MIFA has received so far
        self._sample_counts = _count_samples(evidence)
        # dict from round to the count of updates in all its aggregations
        counts = evidence.data_of("aggregate")["tasks"].map(len)
        rounds = evidence.events["round"].reindex(counts.index)
        self._updates_in_round = counts.groupby(rounds).sum().to_dict()

    def find_problem(self, aggregate: _Aggregate) -> str | None:
        """Return the reason why an aggregation's weights break the strategy's rule, or None.

        If weights depend on losses or on values of updates, only the weights' count, sign and sum
        are checked.
        """
        weights = np.array(aggregate.weights or (), dtype=np.float64)
        problem = _check_form(weights, len(aggregate.tasks))
        if problem is not None:
            return problem
        is_secure = self._strategy.get("secure_aggregation") is not None
        if is_secure and not weights.any():
            return None  # the masked sum could not be decoded
        if self._kind in _BY_STALENESS:
            return self._check_staleness(aggregate, weights)
        if self._kind == "q-fedavg":
            return self._check_fairness(weights)
        return self._check_tolerance(aggregate) or self._check_rule(aggregate, weights)

    def _check_rule(self, aggregate: _Aggregate, weights: Floats) -> str | None:
        """Return the reason why weights break the rule of a strategy with rounds, or None.

        ``find_problem`` calls it after the checks that suit all strategies.

        Args:
            aggregate: the record of the aggregation.
            weights: its recorded weights; float64 [updates].
        """
        if self._depends_on_values:
            return _check_sum(weights)
        if self._chooses_updates:
            return self._check_choice(aggregate, weights)
        problem = self._check_draws(aggregate)
        if problem is not None:
            return problem
        rule = self._rules.get(self._kind, self._weights_by_aggregation)
        return _compare_weights(weights, rule(aggregate, weights))

    @property
    def _depends_on_values(self) -> bool:
        """Whether the strategy's weights depend on losses or updates, which the folder lacks."""
        return self._kind == "rfedavg" or (self._kind == "hetlora" and self._is_learning)

    @property
    def _chooses_updates(self) -> bool:
        """Whether the aggregation chooses updates by the distances between them, as Krum does."""
        if self._kind in UPDATES_ARE_MODELS or not self._is_learning:
            return False
        return self._aggregation["kind"] in _BY_DISTANCE

    def _check_draws(self, aggregate: _Aggregate) -> str | None:
        """Return the reason why the recorded draws of clients are impossible, or None.

        If the scenario selects clients with replacement, a record states how often each client was
        drawn; otherwise it must not.
        """
        has_draws = aggregate.draws is not None
        if has_draws != self._is_with_replacement:
            return "the draws of clients do not agree with selection.replacement"
        counts = aggregate.draw_counts
        if len(counts) != len(aggregate.tasks) or not (counts >= 1).all():
            return f"the draws are {aggregate.draws}"
        if self._is_with_replacement and counts.sum() > self._strategy["clients_per_round"]:
            return f"there are {counts.sum():g} draws in a round"
        return None

    @property
    def _rules(self) -> Mapping[str, _WeightFunction]:
        """Dict from strategy to the function that returns its expected weights.

        All other strategies use ``_weights_by_aggregation``.
        """
        return {
            **dict.fromkeys(UPDATES_ARE_MODELS, self._weights_of_models),
            "feddr": self._weights_of_feddr,
            "ifca": self._weights_of_ifca,
            "mifa": self._weights_of_mifa,
            "fesem": self._weights_of_fesem,
            "fesem-mig": self._weights_of_fesem,
            "refl": self._weights_of_refl,
        }

    def _weights_by_aggregation(self, aggregate: _Aggregate, weights: Floats) -> Floats | None:
        """Return the weights by the scenario's kind of aggregation, such as ``weighted``.

        Args:
            aggregate: the record of the aggregation.
            weights: its recorded weights, used for tasks with an unknown sample count; float64
                [updates].

        Returns:
            The weights, float64 [updates]; None if they cannot be computed from the run folder.
        """
        tasks = aggregate.tasks
        kind = self._aggregation["kind"]
        if kind == "first":
            return np.array([float(task == min(tasks)) for task in tasks])
        if kind == "weighted":
            return self._weights_by_samples(aggregate, weights)
        if kind in _EQUAL_WEIGHTS or kind in _BY_DISTANCE:
            return _divide_by_sum(aggregate.draw_counts)
        return None

    def _weights_of_models(self, aggregate: _Aggregate, _: Floats) -> Floats:
        return np.ones(len(aggregate.tasks))

    def _weights_of_feddr(self, aggregate: _Aggregate, _: Floats) -> Floats:
        return np.full(len(aggregate.tasks), 1 / self._device_count)

    def _weights_of_ifca(self, aggregate: _Aggregate, weights: Floats) -> Floats | None:
        if self._strategy.get("averaging") == "gradients":
            updates = self._updates_in_round[aggregate.round]
            return np.full(len(aggregate.tasks), 1 / updates)
        return self._weights_by_aggregation(aggregate, weights)

    def _weights_of_mifa(self, aggregate: _Aggregate, _: Floats) -> Floats:
        return np.full(len(aggregate.tasks), 1 / self._remembered_devices(aggregate.tasks))

    def _weights_of_refl(self, aggregate: _Aggregate, weights: Floats) -> Floats | None:
        if any(aggregate.staleness or ()):
            return None  # weights of stale updates depend on the updates
        return self._weights_by_aggregation(aggregate, weights)

    def _remembered_devices(self, tasks: list[int]) -> int:
        """Return the count of devices whose updates the strategy MIFA averages.

        MIFA remembers the last update of each device. If the scenario sets ``unheard = "zero"``,
        all devices count. Otherwise only the devices count that have sent an update so far,
        including the devices of ``tasks``.

        Args:
            tasks: IDs of the tasks of the present aggregation.
        """
        if self._strategy["unheard"] == "zero":
            return self._device_count
        self._received_from.update(self._device_of_task[task] for task in tasks)
        return len(self._received_from)

    def _check_fairness(self, weights: Floats) -> str | None:
        """Return the reason why q-FedAvg cannot have these weights; None if it can.

        With q = 0, or without learning, all weights are equal. Otherwise they follow from losses,
        and only their sum is checked, which is at most 1.

        Args:
            weights: recorded weights of an aggregation; float64 [updates].
        """
        if not self._is_learning or self._strategy["q"] == 0:
            return _compare_weights(weights, np.full(len(weights), 1 / len(weights)))
        if weights.sum() <= 1 + _ROUNDING:
            return None
        return f"the weights sum to {float(weights.sum())!r}, more than 1"

    def _weights_of_fesem(self, aggregate: _Aggregate, weights: Floats) -> Floats | None:
        """Return the expected weights of the strategy FeSEM; float64 [updates].

        If the scenario sets ``follows = "paper"``, the weights have to be equal, positive, and at
        most 1 / count of updates; their size is open. So the first recorded weight is expected for
        all updates, if it is in this range. Otherwise zeros are returned, with which the comparison
        fails.

        Args:
            aggregate: the record of the aggregation.
            weights: its recorded weights; float64 [updates].
        """
        if self._follows != "paper":
            return self._weights_by_aggregation(aggregate, weights)
        count = len(weights)
        first_weight = weights[0]
        if 0 < first_weight <= 1 / count * (1 + _ROUNDING):
            return np.full(count, first_weight)
        return np.zeros(count)

    def _weights_by_samples(self, aggregate: _Aggregate, weights: Floats) -> Floats | None:
        """Return weights in proportion to the tasks' samples; None if no sample count is known.

        A task's sample count is multiplied by how often its client was drawn. Tasks with an unknown
        sample count keep their recorded weight; the other tasks share the rest.

        Args:
            aggregate: the record of the aggregation.
            weights: its recorded weights; float64 [updates].
        """
        tasks = aggregate.tasks
        samples = np.array([self._sample_counts.get(task, math.nan) for task in tasks])
        samples *= aggregate.draw_counts
        is_known = ~np.isnan(samples)
        if not is_known.any():
            return None
        total = samples[is_known].sum()
        if not total:  # no known task has samples
            return np.full(len(tasks), 1 / len(tasks))
        share_of_known = 1.0 if is_known.all() else weights[is_known].sum()
        return np.where(is_known, samples / total * share_of_known, weights)

    def _malicious_limit(self, updates: int) -> int:
        """Return how many updates an aggregation by distances, such as Krum, takes for malicious.

        This is the scenario's count ``malicious``, or the limit of the method for this count of
        updates if it is lower. Krum, for example, needs more than twice as many updates as
        malicious updates.

        Args:
            updates: count of updates of the aggregation.
        """
        factor, offset = _BY_DISTANCE[self._aggregation["kind"]]
        limit_of_method = (updates - offset) // factor
        return max(0, min(int(self._aggregation["malicious"]), limit_of_method))

    def _check_tolerance(self, aggregate: _Aggregate) -> str | None:
        """Return the reason why the recorded tolerance of malicious updates is wrong, or None.

        The tolerance (``bears`` in the record) is how many malicious updates do no harm. A record
        states it only if it is less than the scenario sets, because few updates arrived.
        """
        kind = self._aggregation["kind"]
        count = len(aggregate.tasks)
        expected = math.nan  # not recorded
        if kind in _BY_DISTANCE:
            malicious_limit = self._malicious_limit(count)
            if malicious_limit < self._aggregation["malicious"]:
                expected = malicious_limit
        elif kind in ("median", "trimmed-mean") and count <= 2:
            expected = 0
        if np.array_equal(aggregate.tolerated, expected, equal_nan=True):
            return None
        return (
            f"of {count} updates {kind} tolerates {expected:g} malicious ones, the record says "
            f"{aggregate.tolerated:g}"
        )

    def _check_choice(self, aggregate: _Aggregate, weights: Floats) -> str | None:
        """Return the reason why an aggregation by distances chose wrongly, or None.

        An aggregation such as Krum gives equal weights to a fixed count of updates, and weight 0 to
        all remaining updates. If too few updates arrived, all weights have to be 0.

        Args:
            aggregate: the record of the aggregation.
            weights: its recorded weights; float64 [updates].
        """
        # only the record of an aggregation of too few updates states how many it tolerates
        had_too_few_updates = not math.isnan(aggregate.tolerated)
        if had_too_few_updates:
            return "too few updates weigh something" if weights.any() else None
        kind = self._aggregation["kind"]
        count = len(weights)
        malicious_limit = self._malicious_limit(count)
        if kind == "krum":
            expected = 1
        elif kind == "multi-krum":
            expected = count - malicious_limit
        else:  # Bulyan
            expected = count - 2 * malicious_limit
        positive = weights[weights > 0]
        chosen = len(positive)
        if not self._all_finite:  # updates with non-finite values are never chosen
            expected = min(expected, chosen)
        are_equal = not chosen or np.allclose(positive, 1 / chosen, rtol=_ROUNDING, atol=0.0)
        if chosen == expected and are_equal:
            return None
        return (
            f"{kind} takes {expected} of {count} updates alike; the weights are {weights.tolist()}"
        )

    def _check_staleness(self, aggregate: _Aggregate, weights: Floats) -> str | None:
        """Return the reason why an asynchronous strategy cannot have these weights, or None.

        The recorded staleness has to be the count of model versions between a task's start and the
        aggregation. The weights have to follow by the strategy's rule from staleness, buffer or
        concurrency.
        """
        strategy = self._strategy
        version = aggregate.round
        # a task's round is the version that it started from
        ages = [int(version - self._round_of_task[task]) for task in aggregate.tasks]
        if [*(aggregate.staleness or ())] != ages:
            return f"staleness is {aggregate.staleness}, by the tasks {ages}"
        if self._kind == "fedasync":
            alphas = [_mixing_weight(strategy, version, staleness) for staleness in ages]
            return _compare_weights(weights, np.array(alphas))
        if self._kind == "fedcompass":
            factors = strategy["alpha"] * (1 + np.array(ages)) ** -strategy["exponent"]
            return _compare_weights(weights, factors / strategy["concurrency"])
        return self._check_buffer(ages, weights)

    def _check_buffer(self, staleness: list[int], weights: Floats) -> str | None:
        """Return the reason why weights of a buffer of updates are wrong, or None.

        FedBuff and CA2FL aggregate as soon as the buffer has the scenario's count of updates, each
        with the weight 1 / count. FedBuff discounts stale updates; the too stale ones have weight 0
        and do not fill the buffer.

        Args:
            staleness: model versions since each update's task began.
            weights: recorded weights; float64 [updates].
        """
        buffer = self._strategy["buffer"]
        discounts = np.ones(len(staleness))
        if self._kind == "fedbuff":
            discounts = np.array([_staleness_discount(self._strategy, age) for age in staleness])
        counting = np.count_nonzero(discounts)
        if counting != buffer:
            return f"{counting} updates count, the scenario's buffer is {buffer}"
        return _compare_weights(weights, discounts * self._former_rate / buffer)


def _check_form(weights: Floats, updates: int) -> str | None:
    """Return a sentence if there are not ``updates`` weights, or if one is negative; else None."""
    if len(weights) != updates:
        return f"there are {len(weights)} weights of {updates} updates"
    if not (weights >= 0).all():
        return f"the weights are {weights.tolist()}"
    return None


def _check_sum(weights: Floats) -> str | None:
    """Return a sentence if the weights of an aggregation sum to anything but 0 or 1; else None."""
    total = weights.sum()
    if not total or math.isclose(total, 1.0, rel_tol=_ROUNDING):
        return None
    return f"the weights sum to {float(total)!r}"


def _staleness_discount(strategy: TomlTable, staleness: int) -> float:
    """Return the factor by which FedBuff scales an update of a given staleness (rounds)."""
    most = strategy.get("most_staleness")
    if most is not None and staleness > most:
        return 0.0
    if strategy["staleness_discount"]:
        return float((1 + staleness) ** -0.5)
    return 1.0


def _mixing_weight(strategy: TomlTable, version: int, staleness: int) -> float:
    """Return the share of an update in the new global model of FedAsync.

    Args:
        strategy: the strategy's section of the scenario.
        version: version of the global model at the aggregation.
        staleness: versions that were made since the update's task began.
    """
    decays = sum(version >= decay_version for decay_version in strategy["alpha_decay_at"])
    alpha = strategy["alpha"] * strategy.get("alpha_decay", 1.0) ** decays
    if strategy["staleness"] == "hinge":
        excess = max(staleness - strategy["hinge_from"], 0)
        return float(alpha / (strategy["hinge_slope"] * excess + 1))
    return float(alpha * (1 + staleness) ** -strategy["exponent"])


def _compare_weights(weights: Floats, expected: Floats | None) -> str | None:
    """Return a sentence if recorded weights differ from the expected ones; else None.

    Args:
        weights: recorded weights; float64 [n].
        expected: weights by the strategy's rule; float64 [n]. Nothing is compared if this is None
            or has a NaN.
    """
    if expected is None or np.isnan(expected).any():
        return None
    if np.allclose(weights, expected, rtol=_ROUNDING, atol=1e-12):
        return None
    return f"the weights are {weights.tolist()}, by the scenario's rule {expected.tolist()}"


def _count_samples(evidence: Evidence) -> dict[int, float]:
    """Return a dict from task ID to the count of samples on which the task trained.

    The count is NaN if the device's data shifted after the training began, because its sample count
    may have changed since.
    """
    events = evidence.events
    trainings = evidence.trainings
    device = trainings["device"]
    # a scenario without drift has no shifts, so that the kind may be any that keeps the sizes
    drift = evidence.run.scenario.get("drift", {"kind": "rotation"})
    changes_sizes = drift["kind"] not in _SAME_SIZES
    shifts = events[(events["kind"] == "shift") & changes_sizes]
    last_shift = shifts.groupby("device")["time"].last()
    has_changed = last_shift.reindex(device).to_numpy() >= trainings["start"].to_numpy()
    samples = values_at_rows(evidence.devices["samples"], evidence.row_of(device))
    samples = np.where(has_changed, np.nan, samples)
    samples = np.where(trainings["is_partial"], trainings["part_samples"], samples)
    return dict(zip(trainings["task"].tolist(), samples.tolist(), strict=True))


def check_edge_weights(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each time that the server combined models of edge servers wrongly.

    An edge server's weight has to be proportional to the count of samples of the tasks in its last
    aggregation of the round.
    """
    combined = evidence.data_of("edges-combined")
    if not len(combined):
        return
    samples = _count_samples(evidence)
    aggregates = evidence.data_of("aggregate").join(evidence.events[["round", "group"]])
    rounds = evidence.events["round"]
    for row, edges, weights in combined[["edges", "weights"]].itertuples(name=None):
        # an edge server's index is the group of its aggregations
        earlier = aggregates[(aggregates["round"] == rounds[row]) & (aggregates.index < row)]
        last_of_edges = earlier.drop_duplicates("group", keep="last")
        tasks_by_edge = last_of_edges.set_index("group")["tasks"].to_dict()
        if not set(edges) <= {*tasks_by_edge}:
            yield (
                f"record {row} (edges-combined): {edges} are combined, and {[*tasks_by_edge]} have "
                "updates"
            )
            continue
        counts = []
        for edge in edges:
            counts.append(sum(samples.get(task, math.nan) for task in tasks_by_edge[edge]))
        expected = _divide_by_sum(np.array(counts))  # NaN if a count is unknown: not compared
        problem = _compare_weights(np.array(weights, dtype=np.float64), expected)
        if problem is not None:
            yield f"record {row} (edges-combined): {problem}"


def _divide_by_sum(counts: Floats) -> Floats:
    """Divide counts by their sum; all shares are equal if the sum is 0. float64 [n]."""
    total = counts.sum()
    if not total:
        return np.full(len(counts), 1 / len(counts))
    shares: Floats = counts / total
    return shares
