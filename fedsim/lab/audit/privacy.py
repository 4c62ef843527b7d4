"""Check that the rounds' epsilon is the privacy loss of the scenario's noise up to that round."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import numpy as np

from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.strategies import REQUESTS_IN_ROUNDS

_ROUNDING = 1e-9


def check_epsilon(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the rounds' epsilon does not follow from noise, delta and count of rounds.

    Epsilon is the privacy loss up to a round. It must never fall, and has to be empty if the
    scenario does not ask for it, unless the strategy is the user's. If the package dp-accounting is
    installed, the last value is compared with a recomputation, which is exact or gives a lower and
    an upper bound.
    """
    strategy = evidence.run.scenario["strategy"]
    aggregation = strategy.get("aggregation", {})
    is_private = aggregation.get("kind") == "private"
    needs_epsilon = is_private and aggregation["account"] and aggregation["noise"] > 0
    stated = evidence.rounds["epsilon"].to_numpy(np.float64)
    if needs_epsilon and np.isnan(stated).any():
        yield "epsilon is missing in some rounds, and the scenario asks for it"
    is_own = ":" in strategy["kind"]  # a user's strategy may account for privacy by itself
    if not needs_epsilon and not is_own and not np.isnan(stated).all():
        yield "epsilon is given in some rounds, and the scenario does not ask for it"
    if not needs_epsilon or not len(stated) or np.isnan(stated).any():
        return
    if (np.diff(stated) < -_ROUNDING).any():
        yield f"epsilon falls from round to round: {stated.tolist()}"
    if find_spec("dp_accounting") is None:  # an optional package
        return
    lower, upper = _epsilon_bounds(evidence, aggregation)
    if not lower * (1 - 1e-6) <= stated[-1] <= upper * (1 + 1e-6):
        expected = f"{lower:.6g}"
        if lower != upper:
            expected = f"{lower:.6g} to {upper:.6g}"
        yield (
            f"epsilon after the last round is {float(stated[-1])!r}; by the scenario's noise and "
            f"the rounds it is {expected}"
        )


def _epsilon_bounds(evidence: Evidence, aggregation: TomlTable) -> tuple[float, float]:
    """Return a lower and an upper bound of the privacy loss epsilon after the last round.

    The bounds are equal if the run folder determines epsilon.

    Args:
        evidence: the run folder.
        aggregation: the scenario's section on the private aggregation.
    """
    strategy = evidence.run.scenario["strategy"]
    devices = evidence.trainable
    is_local = aggregation["where"] == "local"
    count = len(evidence.rounds)
    delta = aggregation.get("delta") or min(0.5, devices**-1.1)  # the aggregation's default
    noise = float(aggregation["noise"])
    if is_local:  # two clipped updates differ by up to twice the clip
        noise /= 2
    accountant = aggregation["accountant"]
    # the upper bound, as if every device took part in every round
    upper = _compute_epsilon(noise, {1.0: count}, delta, accountant)
    selection = strategy.get("selection", {"kind": "random"})
    # CATA-Fed has names of selections instead of tables
    is_uniform = isinstance(selection, dict) and selection["kind"] == "random"
    # a uniform draw adds privacy, as it hides who took part, but not to noise in each update
    if is_local or not is_uniform:
        return upper, upper
    rounds_by_share = _count_rounds_by_share(evidence, devices)
    if sum(rounds_by_share.values()) != count:  # some begins of rounds are not recorded
        return 0.0, upper
    # the share of all devices is a lower bound of the probability, as only idle devices are drawn
    lower = _compute_epsilon(noise, rounds_by_share, delta, accountant)
    if _is_always_idle(evidence.run.scenario):
        return lower, lower
    return lower, upper


def _count_rounds_by_share(evidence: Evidence, devices: int) -> dict[float, int]:
    """Count the rounds that select the same share of the devices.

    Args:
        evidence: the run folder.
        devices: count of devices that may be selected.

    Returns:
        Dict from share of the devices (0..1) to the count of rounds.
    """
    starts = evidence.data_of("round-start").join(evidence.events["round"])
    starts = starts.drop_duplicates("round", keep="last")
    selected = starts["selected"].to_numpy(np.float64)[: len(evidence.rounds)]
    rounds_by_share: dict[float, int] = {}
    for clients in selected.tolist():
        share = min(1.0, clients / devices)
        rounds_by_share[share] = rounds_by_share.get(share, 0) + 1
    return rounds_by_share


def _is_always_idle(scenario: TomlTable) -> bool:
    """Whether every device is online and idle as each round begins, and so may be drawn."""
    population = scenario["population"]
    if scenario["strategy"]["kind"] not in REQUESTS_IN_ROUNDS:
        return False
    if {"arrivals", "departures"} & population.keys():
        return False
    if population.get("short_of_memory") == "refuse":
        return False
    if population["availability"]["kind"] != "always":
        return False
    return "energy" not in scenario and not scenario.get("world", {}).get("processes")


def _compute_epsilon(
    noise: float, rounds: Mapping[float, int], delta: float, accountant: str
) -> float:
    """Compute epsilon with the package dp-accounting.

    Args:
        noise: noise multiplier of the Gaussian mechanism.
        rounds: dict from probability with which a device takes part to the count of such rounds.
        delta: of (epsilon, delta)-differential privacy.
        accountant: ``pld`` or ``rdp``.
    """
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    is_pld = accountant == "pld"
    account = PLDAccountant(value_discretization_interval=1e-3) if is_pld else RdpAccountant()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    for share, count in sorted(rounds.items()):
        release = dp.GaussianDpEvent(noise)
        if share < 1.0:
            release = dp.PoissonSampledDpEvent(share, release)
        account.compose(release, count)
    epsilon = float(account.get_epsilon(delta))
    logging.set_verbosity(verbosity)
    return epsilon
