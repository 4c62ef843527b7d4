"""Parts in combination: each is refused by name, or keeps its promises (a part of ``tests.benchmarks.parts_matrix``)."""

import pytest

from fedsim.strategies import params_class
from fedsim.strategies.base import StrategyParams
from tests.benchmarks.parts_matrix import CENTRAL, CLIP, KINDS, Played, combinations, judge, rounds_of

PRIVATE = [CENTRAL, CENTRAL | {"where": "local"}]


@pytest.mark.parametrize("kind", KINDS)
def test_with_private_no_model_moves_beyond_clip_times_rounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused would, without the refusal, move farther: no strategy is refused for nothing."""
    cells = [{"strategy": kind, "aggregation": how} for how in PRIVATE]
    verdicts = [judge(cell) for cell in cells]
    assert not [why for verdict, why in verdicts if verdict == "silent"]
    if "aggregation" not in params_class(kind.partition("/")[0]).model_fields:
        assert all("has the unknown key 'aggregation'" in why for _, why in verdicts)
    elif verdicts[0][0] == "refused":
        others = ("averaging", "weights do not count", "updates of different sizes")
        assert all(any(part in why for part in ("bounds how far one update can move a model", *others)) for _, why in verdicts)
        if not any(part in verdicts[0][1] for part in others):
            monkeypatch.setattr(StrategyParams, "_aggregation_keeps_its_promises", lambda self: self)
            for owner in params_class(kind.partition("/")[0]).__mro__:
                if "unprotected" in vars(owner):
                    monkeypatch.setattr(owner, "unprotected", lambda self, protection: None)
            assert Played(cells[0]).moved() > 1.5 * CLIP * rounds_of(cells[0])


def test_combinations_of_parts_keep_their_promises() -> None:
    cells = list(combinations(KINDS, 25, seed=5))
    verdicts = [(judge(cell), cell) for cell in cells]
    assert not [(why, cell) for (verdict, why), cell in verdicts if verdict == "silent"]
    assert {verdict for (verdict, _), _ in verdicts} == {"kept", "refused"}
