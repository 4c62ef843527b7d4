"""What learning costs here, measured: a part of a cohort is trained, and a model is tested."""

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fedsim.forecast.trial import Trained, Trial
from fedsim.training import Training

if TYPE_CHECKING:
    from fedsim.learning import Ref
    from fedsim.learning.engine import Learning

_PILOT_STEPS = 3


class Rates(NamedTuple):
    """Real seconds for a step of SGD of one device, and for a test of the models."""

    step_s: float
    test_s: float


def measure(trial: Trial, patience_s: float) -> Rates:
    """Train what devices of the trial would have trained at once, or as much of it as there is patience for; test once.

    Args:
        trial: which has run.
        patience_s: real seconds for the training, about.
    """
    return Rates(0.0, 0.0) if trial.core is None else asyncio.run(_measured(trial, trial.core, patience_s))


async def _measured(trial: Trial, core: "Learning", patience_s: float) -> Rates:
    trainings = [each for each in _at_once(trial) if _steps_in(trial, each)]
    step_s = await _step_s(trial, core, trainings, patience_s) if trainings else 0.0
    return Rates(step_s, await _test_s(core, patience_s))


def _at_once(trial: Trial) -> list[Trained]:
    """What comes between two tests in the middle of the trial: it would have been trained together."""
    trainings, tests = trial.tally.trainings, max(1, trial.tally.tests)
    together = max(1, round(len(trainings) / tests))
    middle = max(0, (tests // 2) * together)
    return trainings[middle : middle + together] or trainings[-together:]


def _from(start: "Ref", training: Training, steps: int | None) -> Training:
    """The same from another start; for so many steps, if that is said."""
    whole = replace(training, start=start, anchor=None, linear=None)
    return whole if steps is None else replace(whole, epochs=1, steps=steps)


def _steps_in(trial: Trial, trained: Trained) -> int:
    return trained.training.sgd_steps(int(trial.run.samples[trained.device]), trial.run.scenario.training.batch_size)


async def _step_s(trial: Trial, core: "Learning", trainings: list[Trained], patience_s: float) -> float:
    await _train_s(core, trainings[:1], 1)  # what is loaded and laid out the first time is not to be counted
    pilot = min(_PILOT_STEPS, _steps_in(trial, trainings[0]))
    guess = await _train_s(core, trainings[:1], pilot) / pilot
    chosen: list[Trained] = []
    total = 0
    for training in trainings:
        total += _steps_in(trial, training)
        if chosen and total * guess > patience_s:
            total -= _steps_in(trial, training)
            break
        chosen.append(training)
    most = max(_PILOT_STEPS, int(patience_s / guess))
    if total > most:  # even one device is too much
        return await _train_s(core, chosen, most) / most
    return await _train_s(core, chosen, None) / total


async def _train_s(core: "Learning", trainings: list[Trained], most_steps: int | None) -> float:
    """Real seconds that these trainings take; each for so many steps, or all of its own."""
    start = core.initial()
    await core.value(start)
    began = time.perf_counter()
    updates = [
        core.train(_from(start, each.training, most_steps), each.device, key=number) for number, each in enumerate(trainings)
    ]
    await core.values(updates)
    return time.perf_counter() - began


async def _test_s(core: "Learning", patience_s: float) -> float:
    model = core.initial()
    took = float("inf")
    for _ in range(2):  # the first time, images are made that are kept for later
        began = time.perf_counter()
        await core.evaluate({"all": (model, None)})
        took = time.perf_counter() - began
        if took > patience_s:
            break
    return took
