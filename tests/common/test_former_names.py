"""Former keywords and fields of ``Training`` work and warn."""

from dataclasses import replace
from typing import Any

import pytest

from fedsim.common.errors import SimulationError
from fedsim.common.training import ALL_SAMPLES, LocalEpochs, LocalSteps, Proximal, Training


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ({"epochs": 3}, Training("m", 3)),
        ({"steps": 5}, Training("m", LocalSteps(5))),
        ({"epochs": 1, "steps": 5}, Training("m", LocalSteps(5))),
        ({"steps": 5, "only_batch": 2}, Training("m", LocalSteps(5, only_batch=2))),
        ({"full_batch": True}, Training("m", batch_size=ALL_SAMPLES)),
        ({"mu": 0.5}, Training("m", proximal=Proximal(0.5))),
        ({"mu": 0.5, "anchor": "a"}, Training("m", proximal=Proximal(0.5, "a"))),
        ({"last_gradient": True}, Training("m", result="last-gradient")),
        ({"full_batch": False, "last_gradient": False, "steps": None}, Training("m")),
    ],
)
def test_former_keywords_set_the_present_fields(former: Any, present: Training) -> None:
    with pytest.warns(DeprecationWarning, match=r"Training\(\w+=\.\.\.\) is called") as warnings:
        assert Training("m", **former) == present
    assert len(warnings) == len(former)
    assert {warning.filename for warning in warnings} == {__file__}
    with pytest.warns(DeprecationWarning, match="is called"):
        assert replace(Training("m"), **former) == present
    for name, value in former.items():
        if name == "epochs":
            assert present.epochs == value or "steps" in former
        else:
            with pytest.warns(DeprecationWarning, match=rf"Training\.{name} is called"):
                assert getattr(present, name) == value


def test_a_former_keyword_changes_only_its_part_of_a_field() -> None:
    training = Training("m", 3, proximal=Proximal(0.5, "a"))
    former: Any = {"mu": 0.7}
    with pytest.warns(DeprecationWarning, match="is called"):
        assert replace(training, **former).proximal == Proximal(0.7, "a")
    assert training.amount == LocalEpochs(3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("former", [{"steps": 5, "epochs": 2}, {"only_batch": 0}])
def test_former_keywords_that_do_not_go_together_are_refused(former: Any) -> None:
    with pytest.raises(SimulationError, match="only_batch with steps"):
        Training("m", **former)


def test_unknown_fields_are_refused() -> None:
    unknown: Any = {"epoch": 2}
    with pytest.raises(TypeError, match="epoch"):
        Training("m", **unknown)
    with pytest.raises(AttributeError, match="epoch"):
        getattr(Training("m"), "epoch")  # noqa: B009 - mypy knows that there is none
