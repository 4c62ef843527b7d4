"""Words of other frameworks are answered by fedsim's names, which exist."""

import re
from typing import Any

import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.field_words import KEYS, KINDS
from fedsim.lab.catalogue import _REGISTRIES, _every_path
from fedsim.running.scenario import Scenario

LEAST = {
    "data": {"source": "digits"},
    "network": {"kind": "star"},
    "model": {"kind": "mlp"},
    "training": {"kind": "sgd"},
    "population": {"devices": 3},
    "strategy": {"kind": "fedavg"},
    "stop": {"rounds": 1},
}
QUOTED = re.compile(r"'([^']*)'")
DOTTED = re.compile(r"\b[a-z]+(?:\.[a-z_]+)+")


def refusals(word: str, value: Any) -> list[str]:
    """Messages for the key ``word`` beside the tables, and in tables that do not know it."""
    messages = []
    for table in ("", "strategy", "stop"):
        sections: dict[str, Any] = {name: dict(keys) for name, keys in LEAST.items()}
        place = sections[table] if table else sections
        if word in place or (not table and word in Scenario.model_fields):
            continue
        place[word] = value
        try:
            fedsim.Scenario(**sections)
        except ScenarioError as error:
            messages.append(str(error))
    return messages


@pytest.mark.parametrize("word", KEYS)
def test_a_key_of_other_frameworks_is_answered_by_the_name_here(word: str) -> None:
    # an error names Python's arguments in place of the command line's options
    hint = str(ScenarioError(f"(in fedsim {word!r} is {KEYS[word]})"))
    answered = [message for message in refusals(word, "cuda") if hint in message]
    assert len(answered) >= 2


@pytest.mark.parametrize("word", KINDS)
def test_a_kind_of_other_frameworks_is_answered_by_the_name_here(word: str) -> None:
    hint = f"(in fedsim {word!r} is {KINDS[word]})"
    families = ("models", "strategies", "trainers", "data sources", "partitions", "codecs")
    refused = 0
    for family in families:
        registry = _REGISTRIES[family]
        if word in registry.kinds:
            continue
        with pytest.raises(ScenarioError) as caught:
            registry.find(word)
        refused += hint in str(caught.value)
    assert refused >= len(families) - 1


def test_the_names_in_the_answers_exist() -> None:
    paths = {path for path, _, _ in _every_path()} | {f"{t}.kind" for t in LEAST}
    kinds = {kind for registry in _REGISTRIES.values() for kind in registry.kinds}
    kinds |= {"cuda", "Adam", "module:function", "package.module:function"}
    for meaning in [*KEYS.values(), *KINDS.values()]:
        sentence = meaning.replace("package.module:function", "")
        for path in DOTTED.findall(sentence):
            assert path in paths, meaning
        for kind in QUOTED.findall(sentence):
            assert not kind or kind in kinds, meaning
