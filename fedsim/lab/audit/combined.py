"""Were updates combined as the strategy's rule says: with which weights, and at which cost of
privacy?
"""

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.lab.audit.evidence import Evidence, TomlTable, at_places

_ROUNDING = 1e-9
_ALIKE = ("mean", "median", "trimmed-mean", "private")
"""Aggregations by which all updates weigh the same."""

_BY_DISTANCE = {"krum": (2, 3), "multi-krum": (2, 3), "bulyan": (4, 3)}
"""Aggregations by distances, and (a, b): of n updates f may be malicious if n >= a f + b."""

_SAME_SIZES = ("label-permutation", "rotation")
"""Shifts of data that leave each device as many samples as it had."""

_BY_ONE = ("d-psgd", "diloco", "epidemic", "fpfc", "gossip", "local", "local-sgd")
"""Strategies in which each update becomes a model by itself."""


def weights_as_said(evidence: Evidence) -> Iterator[str]:
    """The weights of each aggregation are those that the strategy and its aggregation give, from
    the devices' samples.
    """
    scenario = evidence.run.scenario
    kind = scenario["strategy"]["kind"]
    if ":" in kind or kind == "flower":
        return
    rule = _WeightRule(evidence)
    aggregates = evidence.said("aggregate").join(evidence.events["round"])
    for own in aggregates[["tasks", "weights", "staleness", "bears", "round"]].itertuples():
        if own.tasks and (problem := rule.problem(own)) is not None:
            yield f"record {own.Index} (aggregate): {problem}"


class _WeightRule:
    """The rules that an aggregation has to follow."""

    def __init__(self, evidence: Evidence) -> None:
        scenario = evidence.run.scenario
        self._strategy: TomlTable = scenario["strategy"]
        self._kind: str = self._strategy["kind"]
        self._aggregation: TomlTable = self._strategy.get("aggregation", {"kind": "weighted"})
        self._devices: int = scenario["population"]["devices"]
        self._learns = scenario.get("learning") == "on"
        self._all_finite = not (evidence.events["kind"] == "non-finite").any()
        starts = evidence.events[evidence.events["kind"] == "task-start"]
        self._began = dict(zip(starts["task"].tolist(), starts["round"].tolist(), strict=True))
        self._samples = _samples(evidence)
        aggregates = evidence.said("aggregate")
        updates = aggregates["tasks"].map(len)
        self._in_round = (
            updates.groupby(evidence.events["round"].reindex(updates.index)).sum().to_dict()
        )

    def problem(self, own: Any) -> str | None:
        """The problem with the weights of an aggregation; None if nothing is, or nothing is
        known.
        """
        if own.weights is None or len(own.weights) != len(own.tasks):
            return f"there are {len(own['weights'] or ())} weights of {len(own['tasks'])} updates"
        weights = np.array(own.weights, dtype=np.float64)
        if not (weights >= 0).all():
            return f"the weights are {weights.tolist()}"
        if self._strategy.get("secure_aggregation") is not None and not weights.any():
            return None  # the sum could not be read
        if self._kind in ("fedasync", "fedbuff"):
            return self._without_rounds(own, weights)
        if (problem := self._bears(own)) is not None:
            return problem
        # by values of the updates, or clusters
        if self._kind == "rfedavg" or (self._kind == "hetlora" and self._learns):
            sums = weights.sum()
            return (
                None
                if not sums or math.isclose(sums, 1.0, rel_tol=_ROUNDING)
                else f"the weights sum to {float(sums)!r}"
            )
        if self._aggregation["kind"] in _BY_DISTANCE and self._learns and self._kind not in _BY_ONE:
            return self._chosen(own, weights)
        return _unlike(weights, self._due(own, weights))

    def _due(self, own: Any, weights: Floats) -> Floats | None:
        tasks = own.tasks
        count = len(tasks)
        kind = self._aggregation["kind"]
        if self._kind in _BY_ONE:
            return np.ones(count)
        if self._kind == "feddr":
            return np.full(count, 1 / self._devices)
        if self._strategy.get("averaging") == "gradients":
            return np.full(count, 1 / self._in_round[own.round])
        if self._kind in ("fesem", "fesem-mig") and self._strategy["as"] == "paper":
            return (
                np.full(count, own.weights[0])
                if 0 < own.weights[0] <= 1 / count * (1 + _ROUNDING)
                else np.zeros(count)
            )
        if self._kind == "refl" and any(own.staleness or ()):
            return None
        if kind == "first":
            return np.array([float(task == min(tasks)) for task in tasks])
        if kind == "weighted":
            samples = np.array([self._samples.get(task, math.nan) for task in tasks])
            is_known = ~np.isnan(samples)
            if not is_known.any():
                return None
            total = samples[is_known].sum()
            share = 1.0 if is_known.all() else weights[is_known].sum()
            return (
                np.where(is_known, samples / total * share, weights)
                if total
                else np.full(count, 1 / count)
            )
        return np.full(count, 1 / count) if kind in _ALIKE or kind in _BY_DISTANCE else None

    def _tolerated(self, updates: int) -> int:
        a, b = _BY_DISTANCE[self._aggregation["kind"]]
        return max(0, min(int(self._aggregation["malicious"]), (updates - b) // a))

    def _bears(self, own: Any) -> str | None:
        """A robust aggregation says how many malicious updates it bears, where these are fewer
        than the scenario wants.
        """
        kind = self._aggregation["kind"]
        count = len(own.tasks)
        if kind in _BY_DISTANCE:
            tolerated = self._tolerated(count)
            due = tolerated if tolerated < self._aggregation["malicious"] else math.nan
        else:
            due = 0 if kind in ("median", "trimmed-mean") and count <= 2 else math.nan
        if not np.array_equal(own.bears, due, equal_nan=True):
            return (
                f"of {count} updates {kind} bears {due:g} malicious ones, the record says "
                f"{own.bears:g}"
            )
        return None

    def _chosen(self, own: Any, weights: Floats) -> str | None:
        """Of n updates as many weigh the same as the rule takes; none where there are too few."""
        kind = self._aggregation["kind"]
        count = len(weights)
        if not math.isnan(own.bears):
            return "too few updates weigh something" if weights.any() else None
        tolerated = self._tolerated(count)
        due = {"krum": 1, "multi-krum": count - tolerated, "bulyan": count - 2 * tolerated}[kind]
        taken = int(np.count_nonzero(weights))
        if not self._all_finite and taken <= due:
            due = taken
        alike = weights[weights > 0]
        if taken != due or (taken and not np.allclose(alike, 1 / taken, rtol=_ROUNDING, atol=0.0)):
            return (
                f"{kind} takes {due} of {count} updates alike; the weights are {weights.tolist()}"
            )
        return None

    def _without_rounds(self, own: Any, weights: Floats) -> str | None:
        strategy = self._strategy
        version = own.round
        stale = [int(version - self._began[task]) for task in own.tasks]
        if [*own.staleness] != stale:
            return f"staleness is {own.staleness}, by the tasks {stale}"
        if self._kind == "fedasync":
            return _unlike(weights, np.array([_alpha(strategy, version, each) for each in stale]))
        most = strategy.get("most_staleness")
        discounts = [
            0.0
            if most is not None and each > most
            else (1 + each) ** -0.5
            if strategy["staleness_discount"]
            else 1.0
            for each in stale
        ]
        if np.count_nonzero(discounts) != strategy["buffer"]:
            return (
                f"{np.count_nonzero(discounts)} updates count, the scenario's buffer is "
                f"{strategy['buffer']}"
            )
        return _unlike(weights, np.array(discounts) / strategy["buffer"])


def _alpha(strategy: TomlTable, version: int, staleness: int) -> float:
    alpha = strategy["alpha"] * strategy.get("alpha_decay", 1.0) ** sum(
        version >= at for at in strategy["alpha_decay_at"]
    )
    if strategy["staleness"] == "hinge":
        return float(
            alpha / (strategy["hinge_slope"] * max(staleness - strategy["hinge_from"], 0) + 1)
        )
    return float(alpha * (1 + staleness) ** -strategy["exponent"])


def _unlike(weights: Floats, due: Floats | None) -> str | None:
    if due is None or np.isnan(due).any() or np.allclose(weights, due, rtol=_ROUNDING, atol=1e-12):
        return None
    return f"the weights are {weights.tolist()}, by the scenario's rule {due.tolist()}"


def _samples(evidence: Evidence) -> dict[int, float]:
    """Samples on which each task trained; NaN where the device's data have changed since."""
    events = evidence.events
    trainings = evidence.trainings
    device = trainings["device"]
    drift = evidence.run.scenario.get("drift", {"kind": "rotation"})["kind"]
    shifts = (
        events[(events["kind"] == "shift") & (drift not in _SAME_SIZES)]
        .groupby("device")["time"]
        .last()
    )
    changed = shifts.reindex(device).to_numpy() >= trainings["start"].to_numpy()
    held = at_places(evidence.devices["samples"], evidence.row_of(device))
    samples = np.where(changed, np.nan, held)
    samples = np.where(trainings["in_part"], trainings["part_samples"], samples)
    return dict(zip(trainings["task"].tolist(), samples.tolist(), strict=True))


def edges_as_said(evidence: Evidence) -> Iterator[str]:
    """The server weighs edge servers by the samples of the last updates that each has combined."""
    combined = evidence.said("edges-combined")
    if not len(combined):
        return
    samples = _samples(evidence)
    aggregates = evidence.said("aggregate").join(evidence.events[["round", "group"]])
    rounds = evidence.events["round"]
    for row, edges, weights in zip(
        combined.index.tolist(),
        combined["edges"].tolist(),
        combined["weights"].tolist(),
        strict=True,
    ):
        before = aggregates[(aggregates["round"] == rounds[row]) & (aggregates.index < row)]
        last = before.drop_duplicates("group", keep="last").set_index("group")["tasks"].to_dict()
        if not set(edges) <= {*last}:
            yield f"record {row} (edges-combined): {edges} are combined, and {[*last]} have updates"
            continue
        held = np.array([sum(samples.get(task, math.nan) for task in last[edge]) for edge in edges])
        due = held / held.sum() if held.sum() else np.full(len(held), 1 / len(held))
        if (problem := _unlike(np.array(weights, dtype=np.float64), due)) is not None:
            yield f"record {row} (edges-combined): {problem}"


_NOBODY_ELSE = (
    "ditto",
    "fedavg",
    "fedbn",
    "fedper",
    "fednova",
    "fedprox",
    "fedrep",
    "moon",
    "pfedme",
)
"""Strategies whose server asks nobody outside of rounds, so that all devices that are there are
idle between them.
"""


def privacy_as_said(evidence: Evidence) -> Iterator[str]:
    """Each round has the epsilon that follows from noise, delta and rounds: exactly, or within
    what the draws allow.
    """
    scenario = evidence.run.scenario
    rounds = evidence.rounds
    aggregation = scenario["strategy"].get("aggregation", {})
    accounts = (
        aggregation.get("kind") == "private" and aggregation["account"] and aggregation["noise"] > 0
    )
    stated = rounds["epsilon"].to_numpy(np.float64)
    if accounts and np.isnan(stated).any():
        yield "epsilon is missing in some rounds, and the scenario asks for it"
    if not accounts and not np.isnan(stated).all():
        yield "epsilon is given in some rounds, and the scenario does not ask for it"
    if not accounts or not len(stated) or np.isnan(stated).any():
        return
    if (np.diff(stated) < -_ROUNDING).any():
        yield f"epsilon falls from round to round: {stated.tolist()}"
    if find_spec("dp_accounting") is None:
        return
    least, most = _epsilons(evidence, aggregation)
    if not least * (1 - 1e-6) <= stated[-1] <= most * (1 + 1e-6):
        due = f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"
        yield (
            f"epsilon after the last round is {float(stated[-1])!r}; by the scenario's noise and "
            f"the rounds it is {due}"
        )


def _epsilons(evidence: Evidence, aggregation: TomlTable) -> tuple[float, float]:
    """The least and the most that epsilon may be after the last round."""
    scenario = evidence.run.scenario
    count = len(evidence.rounds)
    strategy = scenario["strategy"]
    population = scenario["population"]
    devices = population["devices"]
    delta = aggregation.get("delta") or min(0.5, devices**-1.1)
    noise = aggregation["noise"] / (2 if aggregation["where"] == "local" else 1)
    in_full = _epsilon(noise, {1.0: count}, delta, aggregation["accountant"])
    selection = strategy.get("selection", {"kind": "random"})
    # CATA-Fed's own have names
    is_uniform = isinstance(selection, dict) and selection["kind"] == "random"
    if aggregation["where"] == "local" or not is_uniform:
        return in_full, in_full
    starts = (
        evidence.said("round-start")
        .join(evidence.events["round"])
        .drop_duplicates("round", keep="last")
    )
    asked = starts["selected"].reindex(starts.index).to_numpy(np.float64)[:count]
    shares: dict[float, int] = {}
    for each in asked.tolist():
        share = min(1.0, each / devices)
        shares[share] = shares.get(share, 0) + 1
    if sum(shares.values()) != count:
        return 0.0, in_full
    least = _epsilon(noise, shares, delta, aggregation["accountant"])
    others = "energy" in scenario or scenario.get("world", {}).get("processes")
    moves = {"arrivals", "departures"} & population.keys() or population["availability"][
        "kind"
    ] != "always"
    exact = strategy["kind"] in _NOBODY_ELSE and not moves and not others
    return least, least if exact else in_full


def _epsilon(noise: float, rounds: Mapping[float, int], delta: float, accountant: str) -> float:
    """Epsilon of rounds in which each device takes part with a probability, by the package
    dp-accounting.
    """
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    account = (
        PLDAccountant(value_discretization_interval=1e-3)
        if accountant == "pld"
        else RdpAccountant()
    )
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    for share, count in sorted(rounds.items()):
        release = dp.GaussianDpEvent(noise)
        account.compose(
            release if share == 1.0 else dp.PoissonSampledDpEvent(share, release), count
        )
    epsilon = float(account.get_epsilon(delta))
    logging.set_verbosity(verbosity)
    return epsilon
