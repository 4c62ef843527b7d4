"""Modules as users bring them: the same to the bit on any number of threads, or refused by the
name of what is wrong.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.common.errors import DataError, FedsimError
from fedsim.common.notes import collected_notes
from fedsim.common.training import Training
from fedsim.learning.draws import global_states
from fedsim.learning.engine import Learning
from fedsim.learning.models import ModuleModel
from fedsim.learning.refs import Ref
from fedsim.running.runner import Job
from tests.learning import zoo
from tests.learning.small import federation, learning, run
from tests.learning.zoo_refused import REFUSED
from tests.strategies.worlds import world

DATA = federation([6, 4, 7], tests=4)
WORKERS = Threads(2)


@pytest.fixture(scope="session", autouse=True)
def _closed() -> Iterator[None]:
    yield
    WORKERS.close()


def core_of(name: str) -> Learning:
    model = ModuleModel(factory="tests.learning.zoo:build", args={"name": name})
    return learning(DATA, model, executor=WORKERS, batch_size=4, lr=0.05)[0]


def outcome(core: Learning, order: Sequence[int]) -> list[bytes]:
    """Bits of the updates of devices that train in an order, by device, and of a test of their
    mean.
    """
    start = core.initial()
    updates = {device: core.train(Training(start, 2), device, key=device) for device in order}
    mean = core.mix([(updates[device], 1 / 3) for device in sorted(updates)])
    asyncio.run(_computed(core, [*updates.values(), mean]))
    tested = run(core.evaluate({"all": (mean, None), "alone": (mean, [2])}))
    assert tested is not None
    values = [ref.value for ref in (*(updates[device] for device in sorted(updates)), mean)]
    return [*(value.tobytes() for value in values if value is not None), tested.loss_sum.tobytes()]


async def _computed(core: Learning, refs: Sequence[Ref]) -> None:
    await core.values(refs)


def states() -> list[Any]:
    return [*global_states().values()]


@pytest.mark.parametrize("name", zoo.RUNS)
def test_a_training_does_not_depend_on_what_the_workers_did_before(name: str) -> None:
    before = states()
    core = core_of(name)
    assert states() == before
    found = outcome(core, (0, 1, 2))
    assert outcome(core, (2, 0, 1)) == found
    assert len(found) == 5
    assert states() == before


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_cannot_be_is_refused_by_name(name: str) -> None:
    before = states()
    with pytest.raises(FedsimError, match=REFUSED[name][1]):
        core_of(name)
    assert states() == before


def test_a_module_may_change_its_inputs_in_place() -> None:
    assert outcome(core_of("in place"), (0, 1, 2)) == outcome(core_of("not in place"), (0, 1, 2))


def test_ordinary_modules_keep_their_copies() -> None:
    """A module whose memory no training changes is copied once for each worker."""
    for name in ("unused", "nn.Dropout", "F.dropout", "ema", "lstm", "spectral norm", "tied"):
        assert not core_of(name)._solver.watch.harmless  # type: ignore[attr-defined]
    assert core_of("last")._solver.watch.harmless == {"last"}  # type: ignore[attr-defined]


def test_a_loss_uses_the_tensors_that_are_trained() -> None:
    """A parameter and a buffer that only the module's loss uses are moved in a training, and
    judge its tests.
    """
    for name, tensor in {
        "loss by a parameter": "log_t",
        "loss by a buffer": "centre",
        "loss by centres": "centres",
    }.items():
        core = core_of(name)
        start = core.initial()
        update = core.train(Training(start, 2), 0, key=1)
        before, after = (core.tensors(run(core.value(ref)))[tensor] for ref in (start, update))
        assert not np.array_equal(before, after)


SURPRISES = {
    "late counter": (lambda self, h: self.steps.append(1) or h, "'steps'"),
    "late draws": (lambda self, h: h * random.random(), "Python's random"),
    "late default_rng": (
        lambda self, h: h * (1 + 0 * np.random.default_rng().random()),
        "a generator that nobody seeds",
    ),
    "late torch": (lambda self, h: torch.nn.functional.dropout(h), "generator of torch"),
}


@pytest.mark.parametrize("name", SURPRISES)
def test_what_only_some_samples_bring_about_is_refused_in_the_run(name: str) -> None:
    """The trial sees the first samples of the largest device; here those of another one are far
    away.
    """
    zoo.RUNS[name] = zoo.made(
        lambda self, h: SURPRISES[name][0](self, h) if bool((h.abs() > 0.999).all()) else h,
        lambda self: setattr(self, "steps", []),
    )
    core = core_of(name)
    _, device, _ = DATA.shards
    DATA.pool.x[device.train] += 1e4
    try:
        # a global generator is the process's: a training on another thread may notice the
        # draw first
        device_named = "1" if name in ("late counter", "late default_rng") else r"\d"
        with pytest.raises(FedsimError, match=rf"{SURPRISES[name][1]}.* device {device_named}"):
            outcome(core, (1, 0, 2))
    finally:
        DATA.pool.x[device.train] -= 1e4
        del zoo.RUNS[name]


def saved(folder: Path, name: str, change: Any = None) -> str:
    """A file of the module's ``state_dict``, as users save it, with a change."""
    tensors = {key: tensor.contiguous() for key, tensor in zoo.build(name).state_dict().items()}
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "m.safetensors")
    return str(folder / "m.safetensors")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("batch norm", None),
        ("complex", None),
        ("half", None),
        ("bfloat16", None),
        ("double", None),
        ("mask of -inf", None),
        ("integers", None),
        ("old spectral norm", None),
        (
            "unused",
            lambda tensors: tensors.update({key: each.bfloat16() for key, each in tensors.items()}),
        ),
        ("complex", lambda tensors: tensors.update(w=torch.view_as_real(tensors["w"]).clone())),
    ],
)
def test_weights_as_users_save_them_are_those_that_training_begins_with(
    name: str, change: Any, tmp_path: Path
) -> None:
    model = ModuleModel(
        factory="tests.learning.zoo:build", args={"name": name}, file=saved(tmp_path, name, change)
    )
    core = learning(DATA, model, batch_size=4)[0]
    tensors = load_file(tmp_path / "m.safetensors")
    initial = core.tensors(run(core.value(core.initial())))
    assert initial
    for key, values in initial.items():
        stored = tensors[key]
        flat = torch.view_as_real(stored) if stored.is_complex() else stored
        assert np.array_equal(values, flat.float().numpy())


def _spoilt(value: float) -> Any:
    return lambda tensors: tensors["a.weight"].view(-1)[:2].fill_(value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_spoilt(float("nan")), "'a.weight' with 2 of 48 numbers that are not finite"),
        (_spoilt(float("inf")), "'a.weight' with 2 of 48 numbers that are not finite"),
        (lambda tensors: tensors.update({"a.wieght": torch.ones(3)}), "did you mean 'a.weight'"),
        (
            lambda tensors: tensors.update({"a.bias": torch.ones(3)}),
            r"of shape \(3,\), for which the model has one of shape \(8,\)",
        ),
        (
            lambda tensors: tensors.update({"a.bias": torch.ones(8, dtype=torch.long)}),
            "of torch.int64, for which",
        ),
        (
            lambda tensors: tensors.update({"a.bias": torch.full((8,), 1e300, dtype=torch.double)}),
            "'a.bias' with 8 numbers beyond the range of torch.float32",
        ),
        (lambda tensors: tensors.clear(), "has no tensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Any, says: str, tmp_path: Path) -> None:
    model = ModuleModel(
        factory="tests.learning.zoo:build",
        args={"name": "unused"},
        file=saved(tmp_path, "unused", change),
    )
    with pytest.raises(DataError, match=says):
        learning(DATA, model)


def test_a_file_that_lacks_a_tensor_is_said_in_a_note(tmp_path: Path) -> None:
    model = ModuleModel(
        factory="tests.learning.zoo:build",
        args={"name": "unused"},
        file=saved(tmp_path, "unused", lambda tensors: tensors.pop("a.bias")),
    )
    with collected_notes() as notes:
        learning(DATA, model)
    assert any("the file lacks a.bias, whose values are drawn" in note for note in notes), notes


LONG = pytest.mark.long
PARTS = [
    ({"kind": "fedavg"}, {}),
    ({"kind": "fedavg"}, {"training": {"kind": "torch", "optimizer": "Adam"}}),
    pytest.param({"kind": "fedavg"}, {"messages": {"up": {"kind": "qsgd"}}}, marks=LONG),
    pytest.param({"kind": "fedavg"}, {"model": {"keep": "norm.*"}}, marks=LONG),
    pytest.param({"kind": "fedavg"}, {"model": {"train": ["b.*", "norm.*"]}}, marks=LONG),
    pytest.param({"kind": "scaffold"}, {}, marks=LONG),
    pytest.param({"kind": "feddyn"}, {}, marks=LONG),
    pytest.param({"kind": "moon"}, {}, marks=LONG),
    pytest.param({"kind": "ifca", "groups": 2}, {}, marks=LONG),
]


@pytest.mark.parametrize(("strategy", "more"), PARTS, ids=str)
def test_an_own_buffer_goes_with_the_model_in_every_part(
    strategy: Any, more: Any, tmp_path: Path
) -> None:
    """A normalisation of a user's, whose buffer is sent, moved, saved; with one worker and
    three, and after an interruption.
    """
    model = {"kind": "module", "factory": "tests.learning.zoo:Normed"} | more.get("model", {})
    strategy = {"clients_per_round": 3} | strategy
    sections = world({"source": "digits"}, 4, strategy, 2, **more | {"model": model})
    models = []
    for workers in (1, 3):
        out = tmp_path / str(workers)
        fedsim.run(fedsim.Scenario(**sections), out, executor="threads", workers=workers)
        models.append(fedsim.load_run(out).summary["models_sha256"])
    assert models[0] == models[1]
    tensors = next(iter(fedsim.load_run(out).models().values()))
    scale = next((values for name, values in tensors.items() if name.endswith("norm.scale")), None)
    assert "keep" in model or (scale is not None and not (scale == 1).all())
    stopped = fedsim.Scenario(**sections | {"checkpoint": {"rounds": 1}})
    job = Job(stopped, tmp_path / "stopped", Inline())
    job.simulation.listen(lambda record: job.interrupt(), kinds=("round",))
    asyncio.run(job.execute())
    resumed = fedsim.run(stopped, tmp_path / "stopped", resume=True)
    assert fedsim.load_run(tmp_path / "stopped").summary["models_sha256"] == models[0]
    assert resumed is not None
