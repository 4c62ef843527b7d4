"""The door to the solvers; closed forms against autograd, the reference against a plain loop;
compiled loops.
"""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsim.common.training import (
    Batching,
    Contrast,
    LastBatch,
    LocalEpochs,
    LocalSteps,
    Proximal,
    Training,
)
from fedsim.learning.architecture import (
    Architecture,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    convolution,
    dense,
)
from fedsim.learning.local_work import last_gradient
from fedsim.learning.models import CNN5, MODELS, Layered, Logistic, Perceptron
from fedsim.learning.solvers import dense_loops, dense_products, dense_updates
from fedsim.learning.solvers.base import (
    Descent,
    LocalSolve,
    batch_width,
    draw_batches,
    use_one_thread,
)
from fedsim.learning.solvers.choice import choose_solver
from fedsim.learning.solvers.dense import Dense, Method
from fedsim.learning.solvers.dropout import KeyedDropout, step_key, with_keyed_dropout
from fedsim.learning.solvers.reference import Reference, flat_weights, load_weights, module_of
from tests.learning.small import (
    PULLS,
    RULES,
    Dropping,
    federation,
    learning,
    plain_sgd,
    pulled,
    run,
    solve_of,
)

METHODS: tuple[Method, ...] = get_args(Method)
RAGGED = (23, 4, 10, 61, 1, 37)


def perceptron(features: int, *widths: int) -> Architecture:
    return Architecture.of((features,), dense(*widths)[:-1])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    use_one_thread()


def _start(architecture: Architecture, seed: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, architecture.parameters).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float64, 1e-12)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize(
    ("rule", "batch_size"), [*((rule, 10) for rule in RULES), (Descent(0.01), 1)], ids=str
)
@pytest.mark.parametrize("widths", [(7,), (13, 7), (40, 9, 7)], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_closed_form_is_autograd(
    method: Method,
    widths: tuple[int, ...],
    rule: Descent,
    batch_size: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    architecture = perceptron(61, *widths)
    number = np.float32 if dtype == torch.float32 else np.float64
    solves = [
        pulled(
            solve_of(
                _start(architecture, 100 + at, number), n, (61,), 7, seed=at, batch_size=batch_size
            ),
            pull,
        )
        for at, n in enumerate(RAGGED)
        for pull in PULLS
    ]
    solver = Dense(architecture, dtype, method=method)
    kernels = [name for name, shape in architecture.tensors if len(shape) == 2]
    for solve in solves:
        weights, loss, *_ = solver.solve(solve, rule)
        module = module_of(architecture).to(dtype)
        load_weights(list(module.parameters()), solve.weights)
        expected, expected_loss = plain_sgd(module, solve, rule, kernels)
        assert np.abs(weights - expected).max() <= tolerance * np.abs(expected).max()
        assert loss == pytest.approx(expected_loss, rel=max(tolerance, 1e-6))


@pytest.mark.parametrize("method", [*METHODS, None])
@pytest.mark.parametrize("sizes", [(784, 10), (61, 40, 9, 7), (90, 200, 9)], ids=str)
def test_a_result_depends_on_no_device_before_it_bit_for_bit(
    sizes: tuple[int, ...], method: Method | None
) -> None:
    """One solver trains many devices in turn, by rules of all kinds, two of which diverge; a
    fresh one trains each alone.
    """
    architecture = perceptron(*sizes)
    solver = Dense(architecture, method=method)
    work = [
        (
            pulled(
                solve_of(_start(architecture, at), n, sizes[:1], sizes[-1], seed=at), PULLS[at % 4]
            ),
            RULES[at % len(RULES)],
        )
        for at, n in enumerate((139, 60, 7, 31, 1, 2, 64, 65))
    ]
    for value in (np.nan, np.inf):
        spoilt = np.full(architecture.parameters, value, np.float32)
        diverged = solve_of(spoilt, 20, sizes[:1], sizes[-1], seed=2)
        work.insert(3, (replace(diverged, anchor=spoilt), Descent(0.1, mu=0.1)))
    for solve, rule in (*work, *work[::-1]):
        found, alone = (
            solver.solve(solve, rule),
            Dense(architecture, method=method).solve(solve, rule),
        )
        assert found.weights.tobytes() == alone.weights.tobytes()
        assert found.train_loss == pytest.approx(alone.train_loss, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_result_does_not_depend_on_where_in_memory_its_arrays_begin(method: Method) -> None:
    architecture = perceptron(61, 13, 7)
    solver = Dense(architecture, method=method)
    solve = pulled(solve_of(_start(architecture, 1), 37, (61,), 7, seed=1), "anchor and linear")
    expected = solver.solve(solve, RULES[-1])
    for begin in range(1, 16, 3):
        x = torch.empty(solve.x.numel() + begin)[begin:].view(solve.x.shape).copy_(solve.x)
        models = {}
        for name in ("weights", "anchor", "linear"):
            models[name] = np.empty(len(solve.weights) + begin, np.float32)[begin:]
            models[name][:] = getattr(solve, name)
            models[name].flags.writeable = False
        moved = solver.solve(replace(solve, x=x, **models), RULES[-1])
        assert moved.weights.tobytes() == expected.weights.tobytes()
        assert moved.train_loss == expected.train_loss


CPU = torch.device("cpu")
BUILT_IN: list[Any] = [
    found for found in map(MODELS.class_of, MODELS) if issubclass(found, Layered)
]


def test_dense_models_have_a_solver_of_their_own_on_a_cpu_all_others_the_reference() -> None:
    for kind in BUILT_IN:
        architecture = kind().architecture((1, 28, 28), 10)
        assert type(choose_solver(architecture, CPU, "fast")) is (
            Dense if architecture.is_dense else Reference
        )
        assert architecture.is_dense == (
            kind.__name__ in ("Logistic", "Perceptron", "FemnistPerceptron")
        )
    assert (
        type(choose_solver(architecture, CPU, "reference"))
        is type(choose_solver(Dropping(6, 3), CPU, "fast"))
        is Reference
    )
    assert (
        type(choose_solver(Logistic().architecture((1, 8, 8), 10), torch.device("meta"), "fast"))
        is Reference
    )
    assert isinstance(
        learning(federation([9, 5]), Logistic(), solver="reference")[0]._solver, Reference
    )


@given(
    st.integers(0, 200),
    st.integers(1, 150),
    st.integers(0, 4),
    st.integers(0, 99),
    st.sampled_from(["drop", "merge"]),
)
def test_a_last_partial_batch_may_be_dropped_or_merged(
    n: int, batch_size: int, epochs: int, seed: int, last: LastBatch
) -> None:
    """The batches are those of ``keep`` but for the last one of an epoch, and of that with more
    batches than one.
    """
    kept = draw_batches(np.random.default_rng(seed), n, Batching(batch_size), LocalEpochs(epochs))
    batches = draw_batches(
        np.random.default_rng(seed), n, Batching(batch_size, last), LocalEpochs(epochs)
    )
    of_kept = [kept.rows[step, :count].tolist() for step, count in enumerate(kept.counts)]
    if n > batch_size and n % batch_size:
        per_epoch = -(-n // batch_size)
        for end in range(epochs * per_epoch, 0, -per_epoch):
            left_over = of_kept.pop(end - 1)
            of_kept[end - 2] += left_over if last == "merge" else []
    assert [
        batches.rows[step, :count].tolist() for step, count in enumerate(batches.counts)
    ] == of_kept
    assert all((batches.rows[step, count:] == n).all() for step, count in enumerate(batches.counts))
    assert batches.steps == epochs * Batching(batch_size, last).count(n)
    assert batches.last_epoch == max(0, batches.steps - batches.per_epoch)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("last", ["drop", "merge"])
def test_closed_forms_take_merged_and_dropped_batches(method: Method, last: LastBatch) -> None:
    architecture, draw = perceptron(61, 13, 7), np.random.default_rng(4)
    x, y = torch.randn(23, 61), torch.randint(7, (23,))
    solve = LocalSolve(
        _start(architecture, 3), x, y, draw_batches(draw, 23, Batching(10, last), LocalEpochs(2))
    )
    weights, loss, *_ = Dense(architecture, method=method).solve(solve, RULES[-1])
    module = module_of(architecture)
    load_weights(list(module.parameters()), solve.weights)
    kernels = [name for name, shape in architecture.tensors if len(shape) == 2]
    expected, expected_loss = plain_sgd(module, solve, RULES[-1], kernels)
    assert np.abs(weights - expected).max() <= 1e-5 * np.abs(expected).max()
    assert loss == pytest.approx(expected_loss, rel=1e-5)


@given(st.integers(0, 200), st.integers(1, 150), st.integers(0, 4), st.integers(0, 99))
def test_each_epoch_is_a_permutation_with_its_last_partial_batch(
    n: int, batch_size: int, epochs: int, seed: int
) -> None:
    batches = draw_batches(
        np.random.default_rng(seed), n, Batching(batch_size), LocalEpochs(epochs)
    )
    assert batches.steps == epochs * -(-n // batch_size)
    assert batches.rows.shape == (batches.steps, batch_width(n, batch_size))
    for epoch in np.split(np.arange(batches.steps), epochs) if batches.steps else []:
        rows = [batches.rows[step, : batches.counts[step]] for step in epoch]
        assert sorted(np.concatenate(rows)) == list(range(n))
        assert all(len(row) == batch_size for row in rows[:-1])
        assert all((batches.rows[step, batches.counts[step] :] == n).all() for step in epoch)
    assert batches.last_epoch == max(0, batches.steps - -(-n // batch_size))


def test_iterations_cut_the_last_epoch_short_and_a_full_batch_is_no_wider_than_it_must_be() -> None:
    assert (
        batch_width(6, 10),
        batch_width(6, 10**6),
        batch_width(70, 10**6),
        batch_width(100, 100),
    ) == (10, 64, 128, 100)
    batches = draw_batches(np.random.default_rng(1), 25, Batching(10), LocalSteps(8))
    assert (batches.rows[0] != batches.rows[3]).any()  # epochs are shuffled anew
    assert batches.counts.tolist() == [10, 10, 5, 10, 10, 5, 10, 10]
    assert batches.last_epoch == 6
    two = draw_batches(np.random.default_rng(1), 25, Batching(10), LocalSteps(2))
    assert two.counts.tolist() == [10, 10]


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ({"l2": 0.05}, ()),
        ({"l2": 0.05, "l2_on": "dense", "weight_decay": 0.1, "momentum": 0.9}, ()),
        ({"clip": 0.3}, ()),
        ({"clip": 0.3, "momentum": 0.5, "l2": 0.05}, ("proximal", "linear")),
        ({}, ("proximal",)),
        ({"momentum": 0.5}, ("proximal", "linear")),
        ({}, ("contrast",)),
        ({}, ("held",)),
        ({"momentum": 0.5, "weight_decay": 0.1}, ("held", "linear")),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model", [Logistic(), Perceptron(hidden=[9])], ids=lambda model: model.kind
)
def test_both_solvers_train_alike(
    model: Layered, spec: dict[str, Any], terms: tuple[str, ...]
) -> None:
    if "contrast" in terms and isinstance(model, Logistic):
        pytest.skip("it has no representation")
    found, plain = [], []
    for solver in ("fast", "reference"):
        core, _ = learning(federation([4, 37, 90]), model, solver=solver, lr=0.1, **spec)
        other, linear = core.initial(1), core.given(np.linspace(-0.1, 0.1, core.parameters))
        first = core.tensors(np.zeros(core.parameters, np.float32))["0.weight"].size
        asked = {
            "proximal": Proximal(0.7, other if "linear" in terms else None),
            "linear": linear,
            "contrast": Contrast(other, 1.0, 0.5),
            "held": ((0, first),),
        }
        how = {name: asked[name] for name in terms}
        for values, more in ((found, how), (plain, {})):
            refs = [
                core.train(Training(core.initial(), 3, **more), device, key=device)
                for device in range(3)
            ]
            values.append(
                np.concatenate([*run(core.values(refs)), [ref.train_loss for ref in refs]])
            )
    assert found[0] == pytest.approx(found[1], abs=2e-5)
    if terms:
        assert np.abs(found[0] - plain[0]).max() > 1e-2  # they do something


EVERYTHING = RULES[-1]


def _weights(module: nn.Module, seed: int) -> np.ndarray:
    size = sum(parameter.numel() for parameter in module.parameters())
    return np.random.default_rng(seed).normal(0, 0.2, size).astype(np.float32)


@pytest.mark.parametrize("convolutions", [False, True])
@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("rule", [Descent(0.1), EVERYTHING], ids=["plain", "everything"])
def test_one_at_a_time_is_a_plain_loop(rule: Descent, pull: str, convolutions: bool) -> None:
    shape = (1, 12, 12) if convolutions else (6,)
    module = (
        module_of(CNN5().architecture((1, 12, 12), 3)) if convolutions else Dropping(6, 3, rate=0.0)
    )
    solver, scale = Reference(module, CPU), 8 if convolutions else 1
    kernels = [name for name, parameter in module.named_parameters() if parameter.ndim > 1]
    for seed, samples in enumerate((23, 4, 10)):
        solve = pulled(solve_of(_weights(module, seed) / scale, samples, shape, 3, seed=seed), pull)
        solved = solver.solve(solve, rule)
        load_weights(list(module.parameters()), solve.weights)
        expected, loss = plain_sgd(module, solve, rule, kernels)
        assert np.allclose(solved.weights, expected, rtol=1e-5, atol=1e-5)
        assert solved.train_loss == pytest.approx(loss, rel=1e-5)


def test_running_statistics_are_numbers_of_the_model_that_no_gradient_moves() -> None:
    """As torch's own loop has them, whatever the rule; in tests they count, for a single sample
    too; what is held stays.
    """
    norm = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    solver = Reference(norm, CPU)
    names = [name for name, _ in solver.tensors]
    assert names == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "2.weight",
        "2.bias",
    ]
    start = np.concatenate(
        [_weights(norm, 1)[:45], [0.5] * 5, [2.0] * 5, _weights(norm, 1)[45:]]
    ).astype(np.float32)
    solve = solve_of(start, 23, (6,), 3, seed=1, batch_size=8)  # with a rest of 7
    plain = {
        name: torch.tensor(part)
        for name, part in zip(names, np.split(start, [30, 35, 40, 45, 50, 55, 70]), strict=True)
    }
    told = {
        name: plain[name].view_as(own) for name, own in norm.state_dict().items() if name in plain
    }
    norm.load_state_dict(told, strict=False)
    steps = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for row, count in zip(solve.batches.rows, solve.batches.counts, strict=True):
        steps.zero_grad()
        nn.functional.cross_entropy(norm(solve.x[row[:count]]), solve.y[row[:count]]).backward()
        steps.step()
    expected = flat_weights([norm.state_dict()[name] for name in names])
    rule = Descent(0.1, momentum=0.5, weight_decay=0.01)
    solved = solver.solve(solve, rule)
    assert np.allclose(solved.weights, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(solved.weights - start)[45:55].min() > 1e-3
    assert np.allclose(
        solver.outputs(solved.weights, solve.x[:1]), norm.eval()(solve.x[:1]).detach(), atol=1e-5
    )
    held = solver.solve(solve, replace(rule, held=((35, 55),)))
    assert (held.weights[35:55] == start[35:55]).all()
    start[50:55] = -1.0  # as a server's step may make it
    assert np.isfinite(solver.outputs(start, solve.x).numpy()).all()


def test_dropout_keeps_the_mean_and_the_rate() -> None:
    layer = KeyedDropout(0.3, position=2).train()
    kept = torch.zeros(400, 50)
    for step in range(20):
        layer.key.fill_(step_key(123, step))
        out = layer(torch.ones(400, 50))
        assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
        kept += out.ne(0)
    assert float(kept.mean() / 20) == pytest.approx(0.7, abs=0.005)
    # masks of different steps are independent
    assert float(kept.std()) == pytest.approx((20 * 0.7 * 0.3) ** 0.5, rel=0.05)
    module = Dropping(6, 3)
    # it is off when a model is applied
    weights, x = flat_weights(list(module.parameters())), torch.ones(5, 6)
    assert torch.allclose(Reference(module, CPU).outputs(weights, x), module.eval()(x), atol=1e-6)


def test_two_layers_have_different_masks_and_channels_fall_as_a_whole() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Dropout2d(0.5)).train()
    with_keyed_dropout(module)
    first, second, channels = module
    assert not torch.equal(first(torch.ones(9, 9)), second(torch.ones(9, 9)))
    planes = channels(torch.ones(6, 8, 3, 3)).flatten(2)
    assert torch.equal(planes.amin(2), planes.amax(2))
    assert 0 < int(planes[..., 0].count_nonzero()) < 48


def _convolutions() -> tuple[Architecture, np.ndarray]:
    layers = (*convolution(4, 3), MaxPool2d(2), Dropout(0.3), Flatten(), *dense(9), Linear(0, 5))
    architecture = Architecture.of((1, 8, 8), layers)
    draw = np.random.default_rng(1)
    parts = [draw.normal(0, 0.3, shape).ravel() for _, shape in architecture.tensors]
    return architecture, np.concatenate(parts).astype(np.float32)


def test_convolutions_depend_on_no_other_device_or_memory_bit_for_bit() -> None:
    architecture, start = _convolutions()
    solves = [solve_of(start, n, architecture.input, 5, seed=n) for n in (23, 4, 10, 1, 17)]
    alone = [Reference(module_of(architecture), CPU).solve(solve, EVERYTHING) for solve in solves]
    solver, before = Reference(module_of(architecture), CPU), torch.random.get_rng_state()
    other = solver.solve(replace(solves[0], key=77), EVERYTHING)  # other dropout masks
    assert other.weights.tobytes() != alone[0].weights.tobytes()

    def moved(array: np.ndarray, numbers: int) -> np.ndarray:
        room = torch.empty(array.size + 16, dtype=torch.from_numpy(array).dtype).numpy()
        room[numbers : numbers + array.size] = array.ravel()
        return room[numbers : numbers + array.size].reshape(array.shape)

    for turn in range(3):
        for solve, own in zip(solves[::-1], alone[::-1], strict=True):
            there = replace(
                solve,
                weights=moved(solve.weights, turn),
                x=torch.from_numpy(moved(solve.x.numpy(), turn)),
            )
            solved = solver.solve(there, EVERYTHING)
            assert (solved.weights.tobytes(), solved.train_loss) == (
                own.weights.tobytes(),
                own.train_loss,
            )
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_penalty_may_be_on_dense_layers_alone() -> None:
    """In a single step it takes 2 l2 of each dense kernel off, and nothing of a convolution or a
    bias.
    """
    architecture, start = _convolutions()
    solver = Reference(module_of(architecture), CPU)
    solve = solve_of(start, 6, architecture.input, 5, seed=2, batch_size=6, epochs=1)
    plain, less = (
        solver.solve(solve, rule) for rule in (Descent(0.5), Descent(0.5, l2=0.1, l2_on="dense"))
    )
    is_dense = np.concatenate(
        [np.full(np.prod(shape), len(shape) == 2) for _, shape in architecture.tensors]
    )
    assert np.abs(less.weights - plain.weights + 0.5 * 0.2 * solve.weights * is_dense).max() <= 1e-6
    added = solver.objective(start, solve.x, solve.y, 2.0, "dense") - solver.objective(
        start, solve.x, solve.y, 0.0
    )
    assert added == pytest.approx(2 * np.square(start[is_dense], dtype=np.float64).sum(), rel=1e-9)


def prefix(solve: LocalSolve, steps: int) -> LocalSolve:
    return replace(solve, batches=solve.batches.between(0, steps))


@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", [*METHODS, "reference"])
def test_the_last_gradient_is_that_of_the_last_mini_batch(
    kind: str, rule: Descent, pull: str
) -> None:
    """By a plain loop: v_t = (w_(t-1) - w_t) / lr, and g = v_T - momentum v_(T-1); the last
    batch has 3 of 23 samples.
    """
    architecture = perceptron(6, 5, 3)
    module = module_of(architecture).double()
    solver: Any = Reference(module, CPU, torch.float64)
    if kind in METHODS:
        solver = Dense(architecture, torch.float64, method=kind)  # type: ignore[arg-type]
    solve = pulled(solve_of(_start(architecture, 5, np.float64), 23, (6,), 3, seed=4), pull)
    kernels = [name for name, shape in architecture.tensors if len(shape) == 2]
    models = []
    for steps in range(solve.batches.steps - 2, solve.batches.steps + 1):
        load_weights(list(module.parameters()), solve.weights)
        models.append(plain_sgd(module, prefix(solve, steps), rule, kernels)[0].copy())
    velocities = -np.diff(models, axis=0) / rule.lr
    expected = velocities[1] - rule.momentum * velocities[0]
    assert last_gradient(solver, solve, rule).weights == pytest.approx(expected, abs=1e-9)


def test_the_last_gradient_is_under_the_masks_of_the_last_step_and_has_no_running_statistics() -> (
    None
):
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    solver = Reference(module, CPU, torch.float64)
    named = dict(solver.tensors)
    start = np.random.default_rng(2).normal(
        0.0, 0.3, sum(int(np.prod(shape)) for shape in named.values())
    )
    solve = solve_of(np.abs(start), 24, (6,), 3, seed=7, batch_size=8)
    before, after = (solver.solve(prefix(solve, steps), Descent(0.1)).weights for steps in (5, 6))
    places = np.cumsum([0, *(int(np.prod(shape)) for shape in named.values())])
    found = last_gradient(solver, solve, Descent(0.1)).weights
    for name, begin, end in zip(named, places[:-1], places[1:], strict=True):
        moved = (before[begin:end] - after[begin:end]) / 0.1
        expected = np.zeros(end - begin) if "running" in name else moved
        assert found[begin:end] == pytest.approx(expected, abs=1e-9), name
    assert "1.running_mean" in named


def test_a_device_without_samples_has_no_gradient() -> None:
    architecture = perceptron(6, 3)
    solve = solve_of(_start(architecture, 5), 0, (6,), 3, seed=4)
    solver = Reference(module_of(architecture), CPU)
    assert not last_gradient(solver, solve, Descent(0.1)).weights.any()


def test_no_function_of_the_compiled_loops_has_machine_code_of_its_own() -> None:
    """Else a process that compiles and a process that loads stored code may differ in last bits."""
    called = []
    for module in (dense_loops, dense_products, dense_updates):
        for function in vars(module).values():
            options = getattr(function, "targetoptions", {})
            if options.get("no_cpython_wrapper"):
                called.append(function.__name__)
                assert options.get("forceinline") or options.get("inline") == "always"
    assert {"_cross_entropy", "add_products", "descend_bias"} <= set(called)
