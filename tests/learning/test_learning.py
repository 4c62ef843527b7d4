"""The core as strategies meet it: oracles of federated averaging, laziness, what is not finite,
equality over workers.
"""

import gc
import weakref
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.clock.executors import Inline, Threads
from fedsim.common.errors import ScenarioError
from fedsim.common.stop import StopSpec
from fedsim.common.training import ALL_SAMPLES, LocalSteps, Part, Proximal, Training
from fedsim.federation.evaluation_spec import EvaluationSpec
from fedsim.federation.evaluator import Evaluator, WorldView
from fedsim.federation.stop_rules import StopRules
from fedsim.learning.data.federated import Shard, stratified_part
from fedsim.learning.engine import Learning
from fedsim.learning.models import CNN5, Logistic, ModelSpec, Perceptron
from fedsim.learning.refs import Initial, Mixed, Ref, Trained, Waves
from fedsim.learning.solvers.reference import flat_weights, load_weights, module_of
from tests.learning.small import Counting, federation, learning, own, run

FULL = 10**6


async def _fedavg(
    core: Learning, sizes: list[int], rounds: int = 1, **how: Any
) -> list[np.ndarray]:
    model, models = core.initial(), []
    for number in range(rounds):
        updates = [
            core.train(Training(model, **how), device, key=number, round=number)
            for device in range(len(sizes))
        ]
        model = core.mix(
            [(update, n / sum(sizes)) for update, n in zip(updates, sizes, strict=True)]
        )
        models.append(await core.value(model))
    return models


@pytest.mark.parametrize(
    "model", [Logistic(), Perceptron(hidden=[5])], ids=lambda model: model.kind
)
def test_one_full_step_each_is_a_step_along_the_mean_gradient(model: ModelSpec) -> None:
    sizes = [5, 30, 12, 90]
    data = federation(sizes)
    core, _ = learning(data, model, lr=0.2, batch_size=FULL)
    (found,) = run(_fedavg(core, sizes))
    module = module_of(model.architecture((6,), 3))  # type: ignore[union-attr]
    parameters = list(module.parameters())
    load_weights(parameters, run(core.value(core.initial())))
    for device, n in enumerate(sizes):
        x, y = map(torch.from_numpy, data.train_samples(data.shard(device)))
        torch.autograd.backward(functional.cross_entropy(module(x), y) * n / sum(sizes))
    expected = flat_weights(parameters) - 0.2 * flat_weights(
        [p.grad for p in parameters if p.grad is not None]
    )
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_a_clipped_gradient_has_the_norm_given_or_its_own(clip: float) -> None:
    core, _ = learning(federation([30]), Logistic(), lr=0.5, batch_size=FULL, clip=clip)
    plain, _ = learning(federation([30]), Logistic(), lr=0.5, batch_size=FULL)
    moved, free = (
        run(_fedavg(one, [30]))[0] - run(one.value(one.initial())) for one in (core, plain)
    )
    assert np.linalg.norm(moved) == pytest.approx(min(0.5 * clip, np.linalg.norm(free)), rel=1e-4)
    assert moved / np.linalg.norm(moved) == pytest.approx(free / np.linalg.norm(free), abs=1e-3)


@pytest.mark.parametrize(
    ("mu", "anchor", "linear"),
    [(0, None, None), (0.5, None, None), (4, -2, None), (0, -2, 0.6), (4, 7, -0.9)],
)
def test_the_optimum_with_a_proximal_and_a_linear_term(
    mu: float, anchor: float | None, linear: float | None
) -> None:
    data = federation([20], shape=(1,))
    data.pool.x[:] = 1.25
    core, _ = learning(data, own("Quadratic"), lr=0.05, batch_size=5)
    center, slope = (None if at is None else core.given(np.array([at])) for at in (anchor, linear))
    training = Training(core.initial(), 200, proximal=Proximal(mu, center), linear=slope)
    solved = run(core.value(core.train(training, 0, key=0)))
    centre = 3.0 if anchor is None else anchor
    assert solved == pytest.approx((1.25 + mu * centre - (linear or 0.0)) / (1 + mu), abs=1e-5)


def test_the_learning_rate_decays_with_the_round() -> None:
    data = federation([20])
    core, _ = learning(data, Logistic(), lr=0.1, lr_decay=0.5, batch_size=FULL)
    slower, _ = learning(data, Logistic(), lr=0.025, batch_size=FULL)
    decayed = run(core.value(core.train(Training(core.initial()), 0, key=0, round=2)))
    assert (
        decayed.tobytes()
        == run(slower.value(slower.train(Training(slower.initial()), 0, key=0))).tobytes()
    )


def test_iterations_and_chosen_samples() -> None:
    """A training on a part, of whatever version, is one of a device that holds no more."""
    data = federation([25])
    shard = data.shards[0]
    later = data._later[0, 2] = Shard(shard.train[::-1].copy(), shard.test)
    for version, whole in ((1, shard), (3, later)):
        data._later[0, version] = Shard(
            whole.train[stratified_part(data.train_labels(whole), 1, 2)], whole.test
        )
    core, _ = learning(data, Logistic(), batch_size=10)
    start = core.initial()
    asked = [Training(start, 2), Training(start, LocalSteps(6)), Training(start, LocalSteps(5))]
    asked += [Training(start, 2, part=Part(1, 2, 25)), Training(start, 2)] * 2
    versions = (0, 0, 0, 0, 1, 2, 3)
    refs = [
        core.train(training, 0, key=1, version=at)
        for training, at in zip(asked, versions, strict=True)
    ]
    by_epochs, by_steps, fewer, part, alone, other, other_alone = (
        value.tobytes() for value in run(core.values(refs))
    )
    assert by_epochs == by_steps != fewer
    assert part == alone != by_epochs
    assert other == other_alone != part


@pytest.mark.parametrize(
    "model", [Logistic(), Perceptron(hidden=[5]), own("Dropping", features=6, classes=3)], ids=str
)
def test_a_full_batch_is_the_whole_local_set_in_one_step_an_epoch(model: ModelSpec) -> None:
    data = federation([70])
    usual, huge = (learning(data, model, batch_size=size, momentum=0.5)[0] for size in (7, FULL))
    whole, by_steps, epochs, small = (
        usual.train(Training(usual.initial(), 3, batch_size=ALL_SAMPLES), 0, key=1),
        usual.train(Training(usual.initial(), LocalSteps(3), batch_size=ALL_SAMPLES), 0, key=1),
        huge.train(Training(huge.initial(), 3), 0, key=1),
        usual.train(Training(usual.initial(), 3), 0, key=1),
    )
    values = [
        run(core.value(ref)).tobytes()
        for core, ref in ((usual, whole), (usual, by_steps), (huge, epochs))
    ]
    assert values[0] == values[1] == values[2] != run(usual.value(small)).tobytes()
    assert whole.train_loss == epochs.train_loss


def test_one_seed_gives_every_strategy_the_same_start() -> None:
    data = federation([5])
    for model in (Logistic(), own("Dropping", features=6, classes=3)):
        first, again, other = (learning(data, model, seed=seed)[0] for seed in (1, 1, 2))
        start = run(first.value(first.initial()))
        run(again.value(again.initial(4)))
        assert run(again.value(again.initial())).tobytes() == start.tobytes()
        assert run(again.value(again.initial(1))).tobytes() != start.tobytes()
        assert run(other.value(other.initial())).tobytes() != start.tobytes()


def test_glorots_initialisation() -> None:
    core, _ = learning(federation([5], shape=(50,)), Logistic())
    tensors, limit = core.tensors(run(core.value(core.initial()))), (6 / 53) ** 0.5
    assert 0.9 * limit < np.abs(tensors["0.weight"]).max() <= limit
    assert not tensors["0.bias"].any()


def test_nobody_asks_nothing_is_trained() -> None:
    executor = Counting()
    core, _ = learning(federation([20] * 6), Logistic(), executor)
    model = core.initial()
    wanted, *unwanted = [core.train(Training(model), device, key=0) for device in range(6)]
    core.mix([(unwanted[0], 1.0)])
    assert executor.asked == []
    run(core.value(wanted))
    assert executor.asked == ["train"]
    run(core.value(wanted))
    assert executor.asked == ["train"]
    assert [update.value is None for update in unwanted] == [True] * 5
    later = [core.mix([(update, 0.5), (model, 0.5)]) for update in unwanted]
    run(core.evaluate({str(at): (ref, [at, 0]) for at, ref in enumerate(later)}))
    assert executor.asked[:6] == ["train"] * 6  # all others as one cohort, before any test
    assert run(core.values([])) == []


@pytest.mark.parametrize(
    "model",
    [Logistic(), own("Dropping", features=6, classes=3), CNN5()],
    ids=lambda model: model.kind,
)
def test_neither_workers_nor_batching_change_a_bit(model: ModelSpec) -> None:
    """Whatever the size of the batches, and where a cohort has several rounds and proximal
    terms.
    """
    sizes = np.random.default_rng(3).integers(1, 90, 40).tolist()
    shape: tuple[int, ...] = (6,)
    if isinstance(model, CNN5):
        sizes, shape = [1 + size // 10 for size in sizes], (1, 12, 12)

    def play(executor: Any, force: bool) -> tuple[bytes, bytes]:
        core, _ = learning(federation(sizes, shape=shape), model, executor, lr_decay=0.5)

        async def rounds() -> tuple[bytes, bytes]:
            start = core.initial()
            for number in range(3):
                how = [
                    Training(
                        start,
                        2,
                        batch_size=ALL_SAMPLES if number == 1 else None,
                        proximal=Proximal(0.5 * (device % 3 == 0)),
                    )
                    for device in range(40)
                ]
                trained = [
                    (training, device, number + device % 2)
                    for device, training in enumerate(how)
                    if device % 2 == number % 2
                ]
                updates = [
                    core.train(training, device, key=number, round=at)
                    for training, device, at in trained
                ]
                if force:
                    for update in updates[::-1]:
                        await core.value(update)
                start = core.mix([(update, 1 / len(updates)) for update in updates])
            evaluation = await core.evaluate({"global": (start, None)})
            return (await core.value(start)).tobytes(), evaluation.loss_sum.tobytes()

        try:
            return run(rounds())
        finally:
            core._simulation.executor.close()

    expected = play(Inline(), force=False)
    for executor, force in (
        (Inline(), True),
        (Threads(1), False),
        (Threads(2), False),
        (Threads(4), True),
    ):
        assert play(executor, force) == expected


def _poisoned(core: Learning, device: int) -> Ref:
    """An update that has diverged."""
    ref = core.train(Training(core.initial()), device, key=0)
    ref.settle(np.full(core.parameters, np.inf, np.float32))
    return ref


def test_an_update_that_is_not_finite_is_left_out_and_recorded() -> None:
    core, records = learning(federation([9] * 3), Logistic())
    good, bad = [core.initial(1), core.initial(2)], _poisoned(core, 2)
    mixed = run(core.value(core.mix([(good[0], 0.2), (bad, 0.5), (good[1], 0.3)])))
    expected = run(core.value(core.mix([(good[0], 0.4), (good[1], 0.6)])))
    assert np.allclose(mixed, expected, atol=1e-7)
    assert [(record.kind, record.fields) for record in records] == [
        ("non-finite", {"device": 2, "ref": bad.name})
    ]


def test_where_nothing_finite_is_left() -> None:
    core, records = learning(federation([9] * 3), Logistic())
    start, bad = core.initial(), _poisoned(core, 1)
    assert (
        run(core.value(core.mix([(bad, 1.0)], otherwise=start))).tobytes()
        == run(core.value(start)).tobytes()
    )
    difference = core.mix([(bad, 1.0), (start, -1.0)])
    kept = core.mix([(start, 1.0), (difference, 0.1)], rescale=False)
    assert run(core.value(kept)).tobytes() == run(core.value(start)).tobytes()
    assert np.isnan(run(core.value(difference))).all()
    assert [record.fields["ref"] for record in records] == [bad.name, bad.name, difference.name]


def test_training_loss_and_discrepancy() -> None:
    core, _ = learning(federation([30, 20, 9]), Logistic())
    model = core.initial()
    updates = [core.train(Training(model, 2), device, key=0) for device in range(2)]
    loss = run(core.train_loss([(updates[0], 30.0), (updates[1], 20.0)]))
    assert loss == pytest.approx((30 * updates[0].train_loss + 20 * updates[1].train_loss) / 50)
    mean = (
        sum(
            float(np.linalg.norm(run(core.value(update)) - run(core.value(model))))
            for update in updates
        )
        / 2
    )
    pairs, bad = [(update, model) for update in updates], _poisoned(core, 2)
    ending = StopRules(StopSpec(rounds=1))
    of = Evaluator(core, ending, EvaluationSpec(), cast("WorldView", None)).discrepancy
    assert (
        run(of(pairs))
        == run(of([*pairs, (bad, model), (model, bad)]))
        == pytest.approx(mean, rel=1e-5)
    )
    assert run(of([(bad, model)])) is run(of([])) is run(core.train_loss([(model, 1.0)])) is None


def test_a_device_that_is_not_there_is_refused_when_learning_starts() -> None:
    with pytest.raises(ScenarioError, match=r"'cuda:99'.*it has cpu") as refusal:
        learning(federation([5]), Logistic(), device="cuda:99")
    assert refusal.value.exit_status == 2


def _training(base: Ref, serial: int) -> Ref:
    return Ref(f"update-{serial}", serial, Trained(Training(base), 0, 0, 0, 0), 0)


def _play(wanted: list[Ref]) -> list[list[str]]:
    """Compute everything with zeros; returns the cohorts."""
    cohorts = []
    for wave in Waves(wanted):
        for ref in wave:
            ref.settle(np.zeros(2, np.float32))
        if wave[0].device is not None:
            cohorts.append([ref.name for ref in wave])
    return cohorts


def test_a_chain_of_thousands_needs_no_recursion_and_frees_what_nobody_holds() -> None:
    ref = start = Ref("model-0", 0, Initial(0))
    middle: weakref.ref[Ref] | None = None
    for at in range(1, 20_001):
        ref = (
            _training(ref, at)
            if at % 2
            else Ref(f"model-{at}", at, Mixed(((ref, 1.0),), start, True))
        )
        if at == 10_000:
            middle = weakref.ref(ref)
    assert len(_play([ref])) == 10_000
    assert middle is not None
    assert middle() is None
    assert ref.recipe is None


def test_a_long_chain_that_is_never_computed_is_dropped_quietly() -> None:
    ref = Ref("model-0", 0, Initial(0))
    start = weakref.ref(ref)
    for at in range(1, 100_000):
        ref = _training(ref, at)
    del ref
    gc.collect()
    assert start() is None
