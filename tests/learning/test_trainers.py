"""Trainers: torch's optimisers against a plain loop in torch, a trainer of one's own, and what
each refuses.
"""

import pickle
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.clock.executors import Threads, WorkerProcesses
from fedsim.clock.simulation import Record, Simulation
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.streams import Streams
from fedsim.common.training import (
    ALL_SAMPLES,
    Batching,
    Contrast,
    LocalEpochs,
    LocalSteps,
    Proximal,
    Training,
)
from fedsim.learning.engine import Learning
from fedsim.learning.models import Perceptron
from fedsim.learning.solvers.base import draw_batches
from fedsim.learning.solvers.reference import flat_weights, load_weights, module_of
from fedsim.learning.spec import TRAINERS
from fedsim.running.scenario import Scenario
from tests.learning.small import federation, own, run

MODEL = Perceptron(hidden=[5])
DATA = federation([23, 9])
LR, BATCH, EPOCHS = 0.05, 5, 3


def core(
    executor: Any = None, listener: Callable[[Record], object] = lambda _: None, **training: Any
) -> Learning:
    told = {"kind": "torch", "lr": LR, "batch_size": BATCH} | training
    trainer = TRAINERS.spec(told["kind"]).model_validate(told)
    simulation = Simulation(executor=executor)
    simulation.listen(listener)
    return Learning(simulation, MODEL, trainer, DATA, Streams(1))


def batches(key: int, size: int = BATCH, epochs: int = EPOCHS) -> list[tuple[Tensor, Tensor]]:
    """Those of device 0 in a task."""
    x, y = (torch.from_numpy(part) for part in DATA.train_samples(DATA.shard(0, 0)))
    order = draw_batches(
        Streams(1).generator("learning/shuffle", 0, key),
        len(y),
        Batching(size),
        LocalEpochs(epochs),
    )
    rows = [
        torch.from_numpy(row[:count]) for row, count in zip(order.rows, order.counts, strict=True)
    ]
    return [(x[row], y[row]) for row in rows]


def module(weights: np.ndarray[Any, Any]) -> nn.Module:
    made = module_of(MODEL.architecture((6,), 3))
    load_weights(list(made.parameters()), weights)
    return made


def looped(
    made: nn.Module,
    given: list[tuple[Tensor, Tensor]],
    optimiser: torch.optim.Optimizer,
    schedule: Any = None,
    *,
    clip: Callable[[Any], object] = lambda _: None,
    smoothing: float = 0.0,
    term: Callable[[], Tensor] = lambda: torch.zeros(()),
) -> np.ndarray[Any, Any]:
    """A local training as anyone would write it."""
    for x, y in given:
        optimiser.zero_grad()
        loss = functional.cross_entropy(made(x), y, label_smoothing=smoothing) + term()
        torch.autograd.backward(loss)
        clip(list(made.parameters()))
        optimiser.step()
        if schedule is not None:
            schedule.step()
    return flat_weights(list(made.parameters()))


ADAM: dict[str, Any] = {"optimizer": "Adam", "args": {"betas": [0.8, 0.99]}}
ADAMW: dict[str, Any] = {
    "optimizer": "AdamW",
    "args": {"weight_decay": 0.1},
    "schedule": {"name": "CosineAnnealingLR"},
}
NO_DECAY = {"groups": [{"match": ["*.bias"], "args": {"weight_decay": 0.0}}]}
NORM = {"clip": lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1)}
VALUE = {"clip": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)}


def adam(made: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(made.parameters(), LR, betas=(0.8, 0.99))


def adamw(made: nn.Module, decay_of_biases: float = 0.1) -> torch.optim.Optimizer:
    named = dict(made.named_parameters())
    groups = [
        {"params": [named[name] for name in named if name.endswith(end)], "weight_decay": decay}
        for end, decay in (("bias", decay_of_biases), ("weight", 0.1))
    ]
    return torch.optim.AdamW(groups, LR)


def sgd(made: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(made.parameters(), LR)


@pytest.mark.parametrize(
    ("training", "optimiser", "how"),
    [
        (ADAM, adam, {}),
        (ADAMW, adamw, {}),
        (ADAMW | NO_DECAY, partial(adamw, decay_of_biases=0.0), {}),
        (ADAM | {"clip_norm": 0.1}, adam, NORM),
        ({"clip_value": 0.01}, sgd, VALUE),
        (ADAM | {"label_smoothing": 0.2}, adam, {"smoothing": 0.2}),
    ],
    ids=["adam", "adamw-cosine", "no-decay-of-biases", "clip-norm", "clip-value", "smoothing"],
)
def test_one_client_is_a_plain_loop_in_torch(training: Any, optimiser: Any, how: Any) -> None:
    learning = core(**training)
    start = learning.initial()
    update = learning.train(Training(start, EPOCHS), 0, key=4)
    made = module(run(learning.value(start)))
    opt = optimiser(made)
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=15)
        if "schedule" in training
        else None
    )
    assert (
        np.abs(run(learning.value(update)) - looped(made, batches(4), opt, schedule, **how)).max()
        < 1e-6
    )


def test_its_terms_are_those_of_sgd_and_it_clips_what_all_terms_add_up_to() -> None:
    """By plain SGD, the step of the closed forms; held parameters stay."""
    found = {}
    for kind in ("sgd", "torch"):
        learning = core(kind=kind)
        one, other, third = (learning.initial(count) for count in range(3))
        places = ((0, 30),)
        trainings = [
            Training(one, EPOCHS),
            Training(one, EPOCHS, proximal=Proximal(0.7, other), linear=third),
            Training(one, EPOCHS, held=places, proximal=Proximal(0.3)),
            Training(one, EPOCHS, contrast=Contrast(other, 2.0, 0.5)),
            Training(one, LocalSteps(3), batch_size=ALL_SAMPLES),
            Training(one, LocalSteps(4, only_batch=2), lr=0.5),
        ]
        updates = [
            learning.train(training, 0, key=number) for number, training in enumerate(trainings)
        ]
        values = run(learning.values(updates))
        found[kind] = [*values, np.array([update.train_loss for update in updates])]
        assert (values[2][:30] == run(learning.value(one))[:30]).all()
    assert all(
        np.allclose(one, other, atol=1e-6, rtol=1e-5)
        for one, other in zip(*found.values(), strict=True)
    )

    learning = core(clip_norm=0.1)
    start, linear = learning.initial(), learning.initial(1)
    update = learning.train(
        Training(start, EPOCHS, proximal=Proximal(0.7), linear=linear), 0, key=1
    )
    made, begin, along = (
        module(run(learning.value(start))),
        run(learning.value(start)),
        run(learning.value(linear)),
    )

    def term() -> Tensor:
        flat = torch.cat([part.reshape(-1) for part in made.parameters()])
        return (
            0.35 * (flat - torch.tensor(begin)).square().sum() + (flat * torch.tensor(along)).sum()
        )

    expected = looped(made, batches(1), sgd(made), term=term, **NORM)
    assert np.abs(run(learning.value(update)) - expected).max() < 1e-6


def test_accumulated_batches_are_larger_ones() -> None:
    """Three of 5 samples are one of 15, and so is what an epoch leaves over."""
    learning = core(**ADAM, accumulate=3)
    start = learning.initial()
    update = learning.train(Training(start, EPOCHS), 0, key=1)
    made = module(run(learning.value(start)))
    assert (
        np.abs(run(learning.value(update)) - looped(made, batches(1, 3 * BATCH), adam(made))).max()
        < 1e-6
    )


def test_a_kept_state_goes_on_and_a_schedule_may_count_rounds() -> None:
    every = {"schedule": {"name": "ExponentialLR", "args": {"gamma": 0.5}, "every": "round"}}
    learning = core(executor=Threads(2), **ADAM, **every, state="kept")
    start = learning.initial()
    first = learning.train(Training(start, EPOCHS), 0, key=0, round=0)
    second = learning.train(Training(first, EPOCHS), 0, key=1, round=1, before=first)
    fresh = learning.train(Training(first, EPOCHS), 0, key=1, round=1)
    # the first, whose state is wanted, is computed for them
    values = run(learning.values([second, fresh]))
    made = module(run(learning.value(start)))
    optimiser = adam(made)
    looped(made, batches(0), optimiser)
    optimiser.param_groups[0]["lr"] = LR / 2
    assert np.abs(values[0] - looped(made, batches(1), optimiser)).max() < 1e-6
    assert np.abs(values[1] - values[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"optimizer": "AdmaW"},
            r"'optimizer' is 'AdmaW'; allowed are torch's .*did you mean 'AdamW'",
        ),
        (
            {"args": {"momentun": 0.9}},
            r"'args' has 'momentun', which SGD does not take.*did you mean 'momentum'",
        ),
        ({"args": {"lr": 0.1}}, r"'args' has 'lr', which is said by training\.lr"),
        (
            ADAM | {"args": {"betas": [2.0, 0.9]}},
            "torch takes no step as asked: Invalid beta parameter",
        ),
        ({"optimizer": "LBFGS"}, "'LBFGS', with which torch takes no step"),
        (
            {"schedule": {"name": "CosineAnealingLR"}},
            r"'schedule\.name' is .*did you mean 'CosineAnnealingLR'",
        ),
        ({"schedule": {"name": "StepLR"}}, "missing 1 required positional argument: 'step_size'"),
        ({"momentum": 0.9}, "training has the unknown key 'momentum'"),
    ],
)
def test_a_scenario_with_what_torch_does_not_take_is_refused(
    training: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        Scenario(training={"kind": "torch"} | training)


@pytest.mark.parametrize("pattern", ["*.bias", "?.bias", "[02].bias", "[!0]*"])
def test_arguments_of_a_group_are_tried_whatever_its_pattern(pattern: str) -> None:
    group = {"match": [pattern], "args": {"rho": "much"}}
    with pytest.raises(ScenarioError, match=r"'Adadelta', with which torch takes no step"):
        Scenario(training={"kind": "torch", "optimizer": "Adadelta", "groups": [group]})


def test_patterns_match_and_a_smoothed_loss_is_no_modules_own() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"the pattern '\*\.bais', which matches no parameter .*did you mean '2\.bias'",
    ):
        core(groups=[{"match": ["*.bais"], "args": {"weight_decay": 0.0}}])
    smoothing = TRAINERS.spec("torch").model_validate({"kind": "torch", "label_smoothing": 0.1})
    with pytest.raises(
        ScenarioError, match=r"label_smoothing is 0\.1, .* the loss is another one; allowed is 0"
    ):
        Learning(Simulation(), own("Quadratic"), smoothing, DATA, Streams(1))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("shape", r"gave back '0\.weight' in the shape \[1, 6\]; it must be \[5, 6\]"),
        (
            "few",
            r"gave back no tensor '0\.weight' of the model; it gave 0\.bias.*did you mean "
            r"'2\.weight'",
        ),
        (
            "random",
            r"draws from the global generator of Python's random, .* seeded by context\.seed",
        ),
        ("entropy", r"a generator that nobody seeds, at own_trainers\.py:\d+; .*context\.seed"),
        ("numpy", r"draws from the global generator of numpy\.random"),
        ("torch", r"draws from the global generator of torch"),
        ("gpu", r"failed on device 0 in round 2: .*own_trainers\.py, line \d+"),
        (
            "forever",
            r"still trains on device 0 in round 2 after 0\.3 s .*own_trainers\.py, line "
            r"\d+.*training\.real_limit",
        ),
        ("none", "gave back None, .*; it must give back two mappings: .*: cannot unpack"),
        (
            "text",
            r"gave back .*; it must give back .* numbers by name, .*: could not convert string "
            r"to float: 'large'",
        ),
        ("kept", r"its state is \{'mean': 3\.0\}; .* the state has tensors"),
    ],
)
def test_a_trainers_mistakes_are_named(how: str, message: str) -> None:
    learning = core(kind="tests.own_trainers:Wrong", how=how, state="kept", real_limit="0.3 s")
    update = learning.train(Training(learning.initial()), 0, key=0, round=2)
    with pytest.raises(
        SimulationError, match=f"training.kind 'tests.own_trainers:Wrong' .*{message}"
    ):
        run(learning.value(update))


def test_what_is_not_finite_is_left_out_and_reported_numbers_stay_with_the_update() -> None:
    learning = core(kind="tests.own_trainers:Wrong", how="nan")
    start = learning.initial()
    update = learning.train(Training(start), 0, key=0)
    assert (
        run(learning.value(learning.mix([(update, 0.5), (start, 0.5)])))
        == run(learning.value(start))
    ).all()
    records: list[Record] = []
    learning = core(None, records.append, kind="tests.own_trainers:Steady", state="kept")
    update = learning.train(Training(learning.initial()), 0, key=0, round=3)
    run(learning.value(update))
    (record,) = records
    told = {"device": 0, "round": 3, "numbers": update.numbers, "ref": update.name}
    assert (record.kind, dict(record.fields)) == ("reported", told)
    assert update.numbers["round"] == 3.0
    assert update.state is not None
    assert update.numbers["mean_loss"] == pytest.approx(update.state["mean"].item())


class Elsewhere(WorkerProcesses):
    """Another process, to which all goes as a pickle."""

    workers = 1

    def place(self, thing: Any) -> None:
        pass


@pytest.mark.parametrize(
    "training", [ADAMW, {"kind": "tests.own_trainers:Steady", "noise": 0.2}], ids=["torch", "own"]
)
def test_another_process_trains_to_the_same_bits(training: dict[str, Any]) -> None:
    found = []
    with closing(Elsewhere(1)) as elsewhere:
        for executor in (None, elsewhere):
            learning = core(executor, **training, state="kept")
            first = learning.train(Training(learning.initial(), proximal=Proximal(0.3)), 0, key=0)
            second = learning.train(Training(first, 2), 1, key=1, before=first)
            found.append((run(learning.value(second)), second.numbers, second.train_loss))
    (here, *told), (there, *told_there) = found
    assert (here == there).all()
    assert told == told_there


WRONG_RATE = """
from fedsim.plugin import Trainer


class WrongRate(Trainer):
    def lr_in(self, round_number):
        return "fast"
"""


def test_a_workers_copy_of_a_trainer_checks_what_hooks_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process imports the author's file anew, without the checks of the driver."""
    (tmp_path / "wrong_rate.py").write_text(WRONG_RATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDSIM_ALLOW_CODE", "wrong_rate")
    kind = "wrong_rate:WrongRate"
    pickled = pickle.dumps(TRAINERS.spec(kind).model_validate({"kind": kind}))
    del sys.modules["wrong_rate"]
    with pytest.raises(SimulationError, match=r"WrongRate\.lr_in .*returns 'fast'"):
        pickle.loads(pickled).lr_in(0)


def test_terms_of_a_strategy_are_refused_by_a_trainer_that_does_not_apply_them() -> None:
    learning = core(kind="tests.own_trainers:Ignorant")
    start = learning.initial()
    learning.train(Training(start, proximal=Proximal(0.0)), 0, key=0)
    with pytest.raises(
        ScenarioError,
        match=r"'tests\.own_trainers:Ignorant', and .* asks for a proximal and a linear",
    ):
        learning.train(Training(start, proximal=Proximal(0.1), linear=start), 0, key=1)
