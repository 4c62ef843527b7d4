"""Earlier names of keys and of public names: read with a note, written as they are called now."""

from typing import Any, ClassVar

import pytest

import fedsim
import fedsim.plugin
from fedsim.common.errors import ScenarioError
from fedsim.common.notes import collected_notes
from fedsim.learning.data.partitions import Iid

EARLIER: list[tuple[dict[str, Any], str, str]] = [
    ({"data": {"normalise": "none"}}, "normalise", 'normalize = "none"'),
    ({"data": {"normalise": "standardise"}}, "normalise", 'normalize = "standardize"'),
    ({"training": {"kind": "torch", "optimiser": "Adam"}}, "optimiser", 'optimizer = "Adam"'),
    (
        {"strategy": {"secure_aggregation": {"neighbours": 4}}},
        "neighbours",
        "neighbors = 4",
    ),
    (
        {"learning": "off", "strategy": {"kind": "flexcfl", "groups": 2, "as": "paper"}},
        "as",
        'follows = "paper"',
    ),
]


@pytest.mark.parametrize(("sections", "earlier", "written"), EARLIER)
def test_an_earlier_name_is_read_with_a_note(
    sections: dict[str, Any], earlier: str, written: str
) -> None:
    with collected_notes() as notes:
        scenario = fedsim.Scenario(**sections)
    assert any(repr(earlier) in note for note in notes)
    text = scenario.to_toml()
    assert written in text
    assert f"{earlier} = " not in text


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(ScenarioError, match="has 'normalise', an earlier name, and 'normalize'"):
        fedsim.Scenario(data={"normalise": "none", "normalize": "pixel"})


def test_a_key_that_a_kind_does_not_take_is_not_offered() -> None:
    with pytest.raises(ScenarioError, match="unknown key 'epoch'") as refused:
        fedsim.Scenario(strategy={"kind": "fedcompass", "epoch": 2})
    assert "local_epochs" not in str(refused.value).partition("allowed are")[2]


def test_earlier_public_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="ServerOptimizer now"):
        earlier = fedsim.plugin.ServerOptimiser
    assert earlier is fedsim.plugin.ServerOptimizer
    with pytest.warns(DeprecationWarning, match="usual_normalize now"):

        class Earlier(Iid):
            usual_normalise: ClassVar[str] = "standardise"

    assert Earlier.usual_normalize == "standardize"


def test_a_key_of_a_part_is_named_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_ALLOW_CODE")
    (tmp_path / "scenario.toml").write_text('[model]\nkind = "module"\nfactory = "mine:Net"\n')
    with pytest.raises(ScenarioError, match=r"^model\.factory is 'mine:Net', which is code"):
        fedsim.load(str(tmp_path / "scenario.toml"))
