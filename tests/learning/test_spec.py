import pytest
from pydantic import ValidationError

from fedsim.errors import ScenarioError
from fedsim.learning.models import Logistic
from fedsim.learning.spec import TrainingSpec
from tests.learning.small import federation, learning


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"l2": -1.0},
        {"lr_decay": 1.1},
        {"device": "gpu"},
    ],
    ids=str,
)
def test_ranges(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainingSpec.model_validate(wrong)


def test_the_learning_rate_decays_by_rounds() -> None:
    assert TrainingSpec(lr=0.1, lr_decay=0.5).lr_in(3) == 0.0125


def test_a_device_that_is_not_there_is_refused_when_learning_starts() -> None:
    with pytest.raises(ScenarioError, match=r"'cuda:99'.*it has cpu") as refusal:
        learning(federation([5]), Logistic(), device="cuda:99")
    assert refusal.value.exit_status == 2
