"""Server optimisers against torch's and steps by hand."""

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fedsim
from fedsim.learning.refs import Ref
from fedsim.plugin import Server
from fedsim.simulation import Simulation
from fedsim.strategies.parts.server import SGD, ServerOptimiser
from fedsim.toolbox.optimisers import Adagrad, Adam, Yogi
from tests.strategies.clustered import played

Weights = NDArray[np.float32]


def walk(optimiser: ServerOptimiser, deltas: list[Weights]) -> tuple[list[Weights], Weights]:
    """The models that an optimiser makes of updates that differ from the model by ``deltas``, and the first model."""
    run = Simulation(fedsim.Scenario(population={"devices": 10})).installed
    server: Server = run.server
    model, state, models = server.models.initial(), {}, []
    first = asyncio.run(server.models.value(model))
    for delta in deltas:
        aggregated: Ref = server.models.given(asyncio.run(server.models.value(model)).astype(np.float64) + delta)
        model = optimiser.step(server, state, model, aggregated)
        models.append(asyncio.run(server.models.value(model)))
    return models, first


def drawn(count: int) -> list[Weights]:
    draw = np.random.default_rng(1)
    return [draw.normal(scale=0.1, size=650).astype(np.float32) for _ in range(count)]


TORCHS: list[tuple[ServerOptimiser, Any]] = [
    (
        Adam(lr=0.02, beta1=0.8, beta2=0.95, tau=1e-4, bias_correction=True),
        lambda own: torch.optim.Adam(own, lr=0.02, betas=(0.8, 0.95), eps=1e-4),
    ),
    (Adagrad(lr=0.05, tau=1e-2), lambda own: torch.optim.Adagrad(own, lr=0.05, initial_accumulator_value=1e-4, eps=1e-2)),
    (SGD(lr=0.5, momentum=0.9), lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9)),
    (SGD(lr=0.5, momentum=0.9, nesterov=True), lambda own: torch.optim.SGD(own, lr=0.5, momentum=0.9, nesterov=True)),
]


@pytest.mark.parametrize(("optimiser", "make"), TORCHS, ids=lambda value: getattr(value, "kind", ""))
def test_it_is_torchs_on_the_pseudo_gradient(optimiser: ServerOptimiser, make: Any) -> None:
    deltas = drawn(6)
    found, first = walk(optimiser, deltas)
    parameter = torch.nn.Parameter(torch.from_numpy(first.copy()))
    theirs = make([parameter])
    for delta, own in zip(deltas, found, strict=True):
        parameter.grad = torch.from_numpy(-delta)
        theirs.step()
        assert own == pytest.approx(parameter.detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("kind", [Adam, Yogi])
@pytest.mark.parametrize("corrected", [False, True])
def test_moments_by_hand(kind: type[Adam] | type[Yogi], corrected: bool) -> None:
    deltas = drawn(5)
    deltas[3] *= 0.1  # so that v falls too
    found, first = walk(kind(lr=0.1, beta1=0.8, beta2=0.9, tau=0.1, bias_correction=corrected), deltas)
    weights, mean, square = first.astype(np.float64), 0.0, np.full(len(first), 0.0 if corrected else 0.01)
    for at, (delta, own) in enumerate(zip(deltas, found, strict=True), 1):
        mean = 0.8 * mean + 0.2 * delta
        squared = delta.astype(np.float64) ** 2
        if kind is Yogi:
            square = np.where(square > squared, square - 0.1 * squared, square + 0.1 * squared)
        else:
            square = 0.9 * square + 0.1 * squared
        scales = (1 - 0.8**at, 1 - 0.9**at) if corrected else (1.0, 1.0)
        weights = weights + 0.1 * (mean / scales[0]) / (np.sqrt(square / scales[1]) + 0.1)
        assert own == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize("optimiser", [SGD(momentum=0.5), Adam(), Yogi(), Adagrad()])
def test_a_round_without_finite_updates_moves_on(optimiser: ServerOptimiser) -> None:
    """The aggregate is then the model itself: the step is finite, now and later."""
    found, _ = walk(optimiser, [drawn(1)[0], np.zeros(650, np.float32), drawn(1)[0]])
    assert all(np.isfinite(model).all() for model in found)


@pytest.mark.parametrize(
    "strategy",
    [{"kind": "flexcfl", "groups": 2, "moment": {"devices": 2}}, {"kind": "ifca", "groups": 2}],
    ids=lambda strategy: strategy["kind"],
)
def test_each_group_has_a_state_of_its_own(strategy: dict[str, Any]) -> None:
    sections: dict[str, Any] = {"population": {"devices": 12, "speed": "100 samples/s"}, "stop": {"rounds": 4}}
    more = {"clients_per_round": 6, "local_epochs": 1, "server": {"kind": "yogi", "beta1": 0.5}}
    run, records = played(sections | {"strategy": strategy | more})
    steps = Counter(record.fields["group"] for record in records if record.kind == "aggregate")
    assert len(steps) == 2
    states = run.strategy.state["server"]
    assert {group: state["steps"] for group, state in states.items()} == steps
    assert states[0]["mean"] is not states[1]["mean"]
