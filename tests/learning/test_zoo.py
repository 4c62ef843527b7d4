"""Modules as users bring them: the same to the bit on any number of threads, or refused by the name of what is wrong."""

import asyncio
import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from fedsim.errors import FedsimError
from fedsim.executors import Threads
from fedsim.learning.draws import global_states
from fedsim.learning.engine import Learning
from fedsim.learning.models import ModuleModel
from fedsim.learning.refs import Ref
from fedsim.training import Training
from tests.learning import zoo
from tests.learning.small import federation, learning, run

DATA = federation([6, 4, 7], tests=4)
WORKERS = Threads(2)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    WORKERS.close()


def core_of(name: str) -> Learning:
    model = ModuleModel(factory="tests.learning.zoo:build", args={"name": name})
    return learning(DATA, model, executor=WORKERS, batch_size=4, lr=0.05)[0]


def outcome(core: Learning, order: Sequence[int]) -> list[bytes]:
    """Bits of the updates of devices that train in an order, by device, and of a test of their mean."""
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


def states() -> list[bytes]:
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


@pytest.mark.parametrize("name", zoo.REFUSED)
def test_a_module_that_cannot_be_is_refused_by_name(name: str) -> None:
    before = states()
    with pytest.raises(FedsimError, match=zoo.REFUSED[name][1]):
        core_of(name)
    assert states() == before


SURPRISES = {
    "late counter": (lambda self, h: self.steps.append(1) or h, "'steps'"),
    "late draws": (lambda self, h: h * random.random(), "Python's random"),
    "late torch": (lambda self, h: torch.nn.functional.dropout(h), "generator of torch"),
}


@pytest.mark.parametrize("name", SURPRISES)
def test_what_only_some_samples_bring_about_is_refused_in_the_run(name: str) -> None:
    """The trial sees the first samples of the largest device; here those of another one are far away."""
    zoo.RUNS[name] = zoo.made(
        lambda self, h: SURPRISES[name][0](self, h) if bool((h.abs() > 0.999).all()) else h,
        lambda self: setattr(self, "steps", []),
    )
    core = core_of(name)
    _, device, _ = DATA.shards
    DATA.pool.x[device.train] += 1e4
    try:
        with pytest.raises(FedsimError, match=f"{SURPRISES[name][1]}.* device 1"):
            outcome(core, (1, 0, 2))
    finally:
        DATA.pool.x[device.train] -= 1e4
        del zoo.RUNS[name]
