"""Reference lines of a comparison: functions from the base's tables to those of the reference's scenario.

They run through the same engine as every strategy, and are scored as the base's strategy is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedsim.errors import ScenarioError
from fedsim.overrides import Tables, changed
from fedsim.strategies import STRATEGIES, strategy_class
from fedsim.world.population import PopulationSpec

_USUAL_DEVICES = PopulationSpec.model_fields["devices"].default
_USUAL_ROUNDS = 100
_NOT_ALONE = ("clients_per_round", "deadline")
_CHANGES_SAMPLES = ("label-permutation", "rotation")  # shifts after which the same samples are other data


def local(base: Mapping[str, Any]) -> Tables:
    """Every device trains alone, as often in a round and for as many epochs as the base asks its clients; nothing is sent."""
    score = _table(base, "evaluation").get("score") or strategy_class(_kind(base)).score
    return changed(base, {"strategy": {"kind": "local"}, "evaluation": {"score": score}})


def centralised(base: Mapping[str, Any]) -> Tables:
    """One device trains alone on the data of all devices of the base.

    It makes as many passes over its data in a round as the base's clients do, and as many rounds; nothing is sent, and nothing
    is late. Its times are those of no federation, and comparisons leave them out. Data that devices swap ([drift]) are the same
    when pooled; data that are released bit by bit are all there from the beginning.

    Raises:
        ScenarioError: the base has no number of rounds, no learning, or a drift that makes other data of the same samples.
    """
    if base.get("learning") == "off":
        raise ScenarioError("'centralised' has no meaning with learning = \"off\": it is there for its accuracy")
    drift = _table(base, "drift").get("kind")
    if drift in _CHANGES_SAMPLES:
        raise ScenarioError(f"'centralised' has no meaning with drift.kind {drift!r}: there is no one set of data to pool")
    stop = {"rounds": _USUAL_ROUNDS} if "stop" not in base else _table(base, "stop")
    if "rounds" not in stop:
        raise ScenarioError("'centralised' needs stop.rounds in the base: it has no simulated time of its own")
    alone = local({key: value for key, value in base.items() if key not in ("drift", "population", "network")})
    return alone | {
        "strategy": {key: value for key, value in alone["strategy"].items() if key not in _NOT_ALONE},
        "data": {**_table(base, "data"), "pooled_from": _table(base, "population").get("devices", _USUAL_DEVICES)},
        "population": {"devices": 1},
        "stop": {key: value for key, value in stop.items() if key != "simulated_time"},
    }


REFERENCES: Mapping[str, Callable[[Mapping[str, Any]], Tables]] = {"centralised": centralised, "local": local}


def _table(base: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of the base; one that is no table is refused when the scenario is validated."""
    section = base.get(name, {})
    return section if isinstance(section, Mapping) else {}


def _kind(base: Mapping[str, Any]) -> str:
    kind = _table(base, "strategy").get("kind", STRATEGIES.usual)
    if not isinstance(kind, str):
        raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
    return kind
