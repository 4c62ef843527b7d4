"""A run that holds nothing for a picture is told so in words."""

import pytest

from fedsim.analysis.pictures import OF_ONE, OF_SEVERAL
from fedsim.analysis.style import NothingToDrawError
from fedsim.records.reading import RunFolder
from tests.analysis.conftest import Ran


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("clusters", "no clusters or tiers by data size"),
        ("membership", "never puts a device into a group"),
        ("similarity", "has recorded no similarity"),
        ("embedding", "neither features nor similarities"),
        ("split-tree", "never splits a cluster"),
        ("edges", "no edge server had a message"),
        ("batteries", "has a battery"),
        ("costs", "several seeds"),
        ("energy", "not counted"),
    ],
)
def test_a_plain_run(run: RunFolder, kind: str, message: str) -> None:
    with pytest.raises(NothingToDrawError, match=message):
        OF_ONE[kind].draw(run) if kind in OF_ONE else OF_SEVERAL[kind].draw([run])


def test_runs_that_moved_nothing_or_learned_nothing(unlearned: RunFolder, ran: Ran) -> None:
    alone, other = ran("alone", strategy={"kind": "local"}, stop={"rounds": 1}), ran("other", seed=2, learning="off")
    with pytest.raises(NothingToDrawError, match="moved no bytes"):
        OF_ONE["traffic"].draw(alone)
    for kind in ("traffic-compared", "traffic-purposes"):
        with pytest.raises(NothingToDrawError, match="moved any bytes"):
            OF_SEVERAL[kind].draw([alone, alone])
    with pytest.raises(NothingToDrawError, match="learning is off"):
        OF_SEVERAL["accuracy"].draw([unlearned])
    with pytest.raises(NothingToDrawError, match="no round was evaluated"):
        OF_SEVERAL["costs"].draw([unlearned, other])
