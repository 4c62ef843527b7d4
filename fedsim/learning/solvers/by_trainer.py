"""Training by an optimiser of torch or a user's trainer, one device at a time, and checks of its
results.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsim.common.errors import FedsimError, SimulationError, nearest, place_of, shown
from fedsim.learning.draws import global_states, moved_since
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved
from fedsim.learning.solvers.context import rules
from fedsim.learning.solvers.reference import Reference, flat_weights
from fedsim.learning.solvers.watched import ModuleCopy
from fedsim.learning.spec import Trainer


class TookTooLongError(Exception):
    """A training is not over after its real time."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise ``TookTooLongError`` within the calling thread after so much real time, as soon as
    Python code runs in it.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    is_over = False
    lock = threading.Lock()

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    thread, ctypes.py_object(TookTooLongError)
                )

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
        # if it has come, and is not raised yet
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


class ByTrainer(Reference):
    """Has a trainer train each device's model, in a module of its own."""

    def __init__(
        self, module: nn.Module, device: torch.device, trainer: Trainer, **options: Any
    ) -> None:
        super().__init__(module, device, **options)
        self._trainer = trainer
        trainer.check_model(self._template, usual_loss=self.has_usual_loss)

    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        if not solve.batches.steps:
            return Solved(solve.weights.copy(), float("nan"), state=solve.state or {})
        trainer = self._trainer
        who = f"training.kind {self._trainer.kind!r}"
        module = ModuleCopy(self._template)
        self._repeat_first(
            solve, descent, f"in the training of device {solve.task[0]} in round {solve.task[1]}"
        )
        before = global_states(self.device)
        with self.context(module, solve, descent) as (trained, context):
            for name, rule in rules(descent, trained).items():
                trained[name].requires_grad_(trained[name].requires_grad and rule.lr > 0)
            where = f"on device {context.device} in round {context.round}"
            try:
                with interrupted_after(trainer.real_limit):
                    outcome = trainer.train(module.module, context.data, context)
            except TookTooLongError as error:
                raise SimulationError(
                    f"{who} still trains {where} after {trainer.real_limit:g} s of real "
                    f"time{place_of(error)}; allowed "
                    "is a training that ends, or a longer training.real_limit"
                ) from error
            except FedsimError:
                raise
            except Exception as error:
                raise SimulationError(
                    f"{who} failed {where}: {type(error).__name__}: {error}{place_of(error)}"
                ) from error
        if drawn := moved_since(before, self.device):
            raise SimulationError(
                f"{who} draws from the global generator of {' and of '.join(drawn)}, so that "
                "results would depend on the order "
                "of the work; allowed is a generator of its own, seeded by context.seed"
            )
        try:
            tensors, numbers = outcome
            for name, like in trained.items():
                if name not in tensors:
                    given = f"{', '.join(map(str, tensors)) or 'nothing'}{nearest(name, map(str, tensors))}"
                    raise SimulationError(
                        f"{who} gave back no tensor {name!r} of the model; it gave {given}"
                    )
                if (found := tensors[name]).shape != like.shape:
                    raise SimulationError(
                        f"{who} gave back {name!r} in the shape {[*found.shape]}; it must be "
                        f"{[*like.shape]}"
                    )
            weights = flat_weights([tensors[name] for name in trained], solve.weights.dtype)
            told = {str(name): float(value) for name, value in numbers.items()}
            kept = {
                name: np.atleast_1d(value.detach().cpu().numpy().copy())
                for name, value in context.state.items()
            }
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise SimulationError(
                f"{who} gave back {shown(outcome)}, and its state is {shown(context.state)}; "
                "it must give back two mappings: "
                "trained tensors (model.state_dict()) and numbers by name, and the state has "
                f"tensors: {error}"
            ) from error
        for begin, end in descent.held:
            weights[begin:end] = solve.weights[begin:end]
        loss = told.pop("loss", context.train_loss)
        if trainer.stops_early:
            taken = context.data.taken
            counts = context.data.counts
            told |= {"batches": float(taken), "share": sum(counts[:taken]) / sum(counts)}
        return Solved(weights, loss, told, {} if trainer.state == "fresh" else kept)
