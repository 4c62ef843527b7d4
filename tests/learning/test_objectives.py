"""Losses and metrics against plain torch, scikit-learn and least squares; refusals of what does
not fit.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

import fedsim
from fedsim.common.errors import FedsimError
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.data.sources import SOURCES
from fedsim.learning.modules import step_flops
from fedsim.testing import run
from fedsim.toolbox.models.tokens import CharLSTM, Transformer
from fedsim.toolbox.objectives import METRICS, MaskedToken
from tests.calls import call

HERE = "tests.learning.test_objectives"
TOKENS = {
    "data": {"source": {"kind": "text", "length": 12}, "partition": "by-label"},
    "objective": {"kind": "next-token"},
}
LINEAR = {"data": {"source": "linear"}, "objective": {"kind": "regression"}}
SHAPE = TokenShape.of((40,), 90, "next")


def scenario(**sections: Any) -> fedsim.Scenario:
    """Of a few fast rounds."""
    usual = {
        "population": {"devices": 14},
        "strategy": {"kind": "fedavg", "clients_per_round": 5},
        "stop": {"rounds": 2},
    }
    return fedsim.Scenario(**(usual | sections))


def test_perplexity_is_that_of_plain_torch(tmp_path: Any) -> None:
    model = {"kind": "char-lstm", "hidden": 8}
    result = fedsim.run(scenario(**TOKENS, model=model, training={"lr": 0.5}), tmp_path / "run")
    run = fedsim.load_run(tmp_path / "run")
    raw = SOURCES.class_of("text")(length=12).load(None)
    module = CharLSTM(hidden=8).plain_module(
        TokenShape.of((12,), raw.vocabulary, "next"), raw.vocabulary
    )
    module.load_state_dict(
        {name: torch.from_numpy(part) for name, part in run.models()["global"].items()}
    )
    x = torch.from_numpy(raw.x_test)
    with torch.no_grad():
        outputs = module(x[:, :-1]).double()
    loss = functional.cross_entropy(outputs.flatten(0, 1), x[:, 1:].flatten())
    assert result.summary["metrics"]["perplexity"]["final"] == pytest.approx(
        math.exp(loss), rel=1e-6
    )
    assert result.rows[-1]["loss"] == pytest.approx(float(loss), rel=1e-6)
    right = (outputs.argmax(dim=2) == x[:, 1:]).double().mean()
    assert result.rows[-1]["accuracy"] == pytest.approx(float(right))
    assert result.summary["metrics"]["perplexity"]["best_is"] == "least"


@pytest.mark.parametrize("many", [False, True])
def test_f1_and_auc_are_those_of_scikit_learn(many: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(200, 5, generator=generator)
    if many:
        targets = (torch.rand(200, 5, generator=generator) < 0.3).float()
        f1 = f1_score(targets, outputs > 0, average="macro")
        auc = roc_auc_score(targets, outputs, average="macro")
    else:
        targets = torch.randint(5, (200,), generator=generator)
        f1 = f1_score(targets, outputs.argmax(dim=1), average="macro")
        auc = roc_auc_score(
            targets, outputs.double().softmax(dim=1), multi_class="ovr", average="macro"
        )
    found = {
        name: METRICS[name].value(METRICS[name].keep(outputs, targets).double().numpy())
        for name in ("f1", "auc")
    }
    assert found == pytest.approx({"f1": f1, "auc": auc}, abs=1e-9)


def test_a_linear_law_is_learned_to_its_noise() -> None:
    """One step of gradient descent a round on all samples ends where least squares does."""
    source = {"kind": "linear", "samples": 1000, "features": 8}
    data = {"source": source, "partition": "by-label", "column": "group"}
    objective = {"kind": "regression", "metrics": ["mse", "rmse"]}
    population, stop = {"devices": 10}, {"rounds": 150, "metrics": {"mse": 0.2}}
    training, strategy = (
        {"lr": 0.1, "batch_size": 1000},
        {"kind": "fedavg", "clients_per_round": 10},
    )
    tables = {
        "data": data,
        "objective": objective,
        "training": training,
        "population": population,
        "strategy": strategy,
    }
    last = fedsim.run(scenario(**tables, stop=stop)).rows[-1]
    raw = SOURCES.class_of("linear")(samples=1000, features=8).load(None)
    x, tested = (np.column_stack([part, np.ones(len(part))]) for part in (raw.x_train, raw.x_test))
    best = np.square(tested @ np.linalg.lstsq(x, raw.y_train, rcond=None)[0] - raw.y_test).mean()
    assert last["mse"] == pytest.approx(best, rel=1e-3)
    assert last["mse"] == pytest.approx(0.5**2, rel=0.2)
    assert (last["rmse"] ** 2, last["accuracy"]) == (pytest.approx(last["mse"]), None)
    reached = fedsim.run(scenario(**tables, stop={"rounds": 150, "metrics": {"mse": 1.0}})).summary
    assert reached["stopped"].startswith("mse 0.")
    assert reached["rounds"] < 150


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).abs().mean(dim=1)


def test_a_loss_and_a_metric_of_ones_own() -> None:
    objective = {
        "kind": "regression",
        "metrics": ["mse", f"{HERE}:absolute"],
        "loss": f"{HERE}:absolute",
    }
    last = fedsim.run(scenario(**LINEAR | {"objective": objective})).rows[-1]
    assert last["absolute"] == pytest.approx(last["loss"])
    assert last["absolute"] ** 2 < last["mse"]


def test_masks_hide_a_share_and_ask_for_what_they_hide() -> None:
    raw = SOURCES.class_of("text")(length=30).load(None)
    from fedsim.learning.data.federated import pooled

    before = pooled(raw, "none").pool
    pool = MaskedToken(share=0.2).fitted(before, Streams(1))
    hidden = pool.x == raw.vocabulary
    assert pool.targets is not None
    assert 0.18 < hidden.mean() < 0.23
    assert hidden.any(axis=1).all()
    assert (np.where(hidden, pool.targets, pool.x) == before.x).all()
    assert (pool.targets[~hidden] == -100).all()
    tables = TOKENS | {
        "objective": {"kind": "masked-token"},
        "model": {"kind": "transformer", "hidden": 8},
    }
    result = fedsim.run(scenario(**tables))
    assert 1.0 < result.summary["metrics"]["perplexity"]["final"] < raw.vocabulary + 20


def test_built_in_models_have_the_published_size_and_their_cost_is_counted() -> None:
    assert CharLSTM(hidden=256, layers=2).parameters(SHAPE, 90) == 820_522 + 2_048
    lstm, inner = CharLSTM(hidden=64).plain_module(SHAPE, 90), 2 * 4 * 64 * (8 + 64)
    assert step_flops(lstm, SHAPE) == 3 * 40 * (inner + 2 * 64 * 90)
    blocks = 2 * (2 * (12 * 32 * 32) * 40 + 2 * 2 * 40 * 40 * 32)
    assert step_flops(Transformer().plain_module(SHAPE, 90), SHAPE) == 3 * (
        blocks + 2 * 32 * 90 * 40
    )
    seen = Transformer().plain_module(SHAPE, 90).eval()
    x = torch.arange(40)[None] % 90
    later = x.clone()
    later[0, 30] = 1
    assert torch.allclose(seen(x)[0, :30], seen(later)[0, :30], atol=1e-5)
    assert not torch.allclose(seen(x)[0, 30:], seen(later)[0, 30:], atol=1e-3)


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> Any:
        x = torch.tensor([float(at % 7), 1.0])
        return {"x": x, "y": torch.tensor([float(at % 2), float(at % 3 == 0)]), "place": at % 4}


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield 1.0, 2.0


def test_a_dataset_with_two_labels_and_a_column() -> None:
    data = {
        "source": {"kind": "dataset", "factory": f"{HERE}:Pairs"},
        "column": "place",
        "partition": "by-label",
    }
    objective = {"kind": "multi-label", "metrics": ["f1", "auc"]}
    strategy = {"kind": "fedavg", "clients_per_round": 2}
    run = fedsim.run(
        scenario(data=data, objective=objective, population={"devices": 4}, strategy=strategy)
    )
    metrics = run.summary["metrics"]
    assert set(metrics) == {"f1", "auc"}
    assert 0.0 <= metrics["auc"]["final"] <= 1.0


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        (
            {"data": {"source": {"kind": "dataset", "factory": f"{HERE}:Endless"}}},
            "an IterableDataset (Endless)",
        ),
        ({"data": {"source": "linear"}}, "objective.kind is 'classification', which needs labels"),
        (
            {"objective": {"kind": "regression"}},
            "objective.kind is 'regression', which needs targets that are floats",
        ),
        (
            {"objective": {"kind": "next-token"}},
            "which needs samples that are sequences of two tokens or more",
        ),
        (
            {"objective": LINEAR["objective"] | {"metrics": ["perplexity"]}},
            "allowed with objective.kind = 'regression' are mse",
        ),
        (
            TOKENS | {"model": {"kind": "mlp"}},
            "model.kind is 'mlp', which takes numbers, and samples are tokens",
        ),
        ({"model": {"kind": "char-lstm"}}, "'char-lstm', which takes sequences of tokens"),
        (
            {"data": {"source": "linear", "partition": "dirichlet"}},
            "deals by labels, and 'linear' has targets instead",
        ),
        ({"data": {"source": "linear", "column": "place"}}, "data.column is 'place'; the columns"),
        ({"stop": {"rounds": 2, "metrics": {"perplexity": 8.0}}}, "stop.metrics has 'perplexity'"),
        (
            LINEAR | {"strategy": {"kind": "tifl", "mode": "credits"}},
            "strategy.mode is 'credits', which goes by accuracies",
        ),
        (
            TOKENS | {"drift": {"kind": "label-permutation"}, "model": {"kind": "char-lstm"}},
            "the model learns targets instead",
        ),
    ],
)
def test_what_does_not_fit_is_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(FedsimError) as caught:
        fedsim.run(scenario(**sections))
    assert says in str(caught.value)


def test_targets_of_a_metric(tmp_path: Any) -> None:
    """The least is the best of mse: costs until it was reached, in comparisons too; the names of
    others are answered.
    """
    run = fedsim.run(scenario(**LINEAR, stop={"rounds": 6}), tmp_path / "run")
    errors = [row["mse"] for row in run.rows]
    goal = errors[3] * 1.001
    first = next(row for row in run.rows if row["mse"] <= goal)
    assert run.costs_to(f"mse={goal}") == fedsim.load_run(tmp_path / "run").costs_to(f"mse={goal}")
    assert run.costs_to(f"mse={goal}")["time"] == first["time"]
    assert math.isnan(run.costs_to("mse=0")["rounds"])
    said = call("compare", tmp_path / "run", "--target", f"mse={goal}").output
    assert f"time to target mse {goal:g} (s)" in said
    assert "final mse" in said
    assert f"{errors[-1]:.4f}"[:5] in said
    for target, hint in (
        ("msd=1", "did you mean 'mse'"),
        ("mse=few", "such as perplexity=8"),
        ("1.5", "from 0 to 1"),
    ):
        answer = call("compare", tmp_path / "run", "--target", target)
        assert (answer.exit_code, hint in answer.output) == (2, True)


@pytest.mark.parametrize("model", ["char-lstm", "transformer"])
def test_tokens_without_an_objective_are_classified(model: str) -> None:
    """The labels of ``text`` are its speakers; 14 answers a sample, and not one at each token."""
    sections: dict[str, Any] = {
        "data": {"source": {"kind": "text", "length": 10}, "partition": "by-label"},
        "model": model,
        "population": {"devices": 4, "speed": "100 samples/s"},
        "strategy": {"kind": "fedavg", "clients_per_round": 2},
        "stop": {"rounds": 1},
    }
    assert 0 <= run(sections)["accuracy"]["final"] <= 1


def loss_in_place(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Changes targets before their first use, and outputs, which the gradient does not need."""
    classes = targets.clone()
    targets.fill_(0)
    losses = functional.cross_entropy(outputs, classes, reduction="none")
    outputs.neg_()
    return losses


def loss_of_copies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def test_a_function_may_change_its_arguments_in_place(tmp_path: Any) -> None:
    """Neither the accuracy, nor another metric, nor a later test sees the change."""
    hashes = set()
    for name in ("loss_in_place", "loss_of_copies"):
        objective = {
            "kind": "classification",
            "loss": f"{HERE}:{name}",
            "metrics": [f"{HERE}:{name}", "f1"],
        }
        run_scenario = scenario(data={"source": "digits"}, objective=objective)
        fedsim.run(run_scenario, tmp_path / name)
        table = fedsim.load_run(tmp_path / name).rounds
        table.columns = [column.replace(name, "own") for column in table.columns]
        hashes.add(table.to_csv())
    assert len(hashes) == 1


def loss_that_spoils_its_gradient(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    targets.fill_(0)
    return losses


def loss_of_a_batch(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(functional.cross_entropy(outputs, targets).detach())


@pytest.mark.parametrize(
    "training",
    [{"solver": "reference"}, {"kind": "torch", "optimizer": "Adam"}],
)
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("loss_that_spoils_its_gradient", r"changed in place after its use.*allowed are changes"),
        ("loss_of_a_batch", "gave float for [0-9]+ samples; it must give a tensor with one"),
    ],
)
def test_a_loss_without_gradient_is_refused_in_words(
    training: dict[str, Any], loss: str, words: str
) -> None:
    objective = {"kind": "classification", "loss": f"{HERE}:{loss}"}
    with pytest.raises(FedsimError, match=words) as refusal:
        run(
            {
                "data": {"source": "digits"},
                "objective": objective,
                "training": training,
                "population": {"devices": 4},
                "strategy": {"kind": "fedavg", "clients_per_round": 1},
                "stop": {"rounds": 1},
            }
        )
    assert "model.factory" not in str(refusal.value)  # the scenario names none
