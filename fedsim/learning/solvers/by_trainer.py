"""Solver that calls a trainer, such as an optimiser of torch, and checks the trainer's results."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.common.errors import FedsimError, SimulationError, nearest, place_of, show_value
from fedsim.learning.draws import find_draws, global_states
from fedsim.learning.entropy import entropy_watched
from fedsim.learning.host_copies import to_host
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved
from fedsim.learning.solvers.context import TrainingContext, rules
from fedsim.learning.solvers.reference import Reference, flat_result
from fedsim.learning.solvers.watched import MOST_SHOWN, ModuleCopy, show_failure
from fedsim.learning.spec import Trainer


class TookTooLongError(Exception):
    """Error that interrupts a training that has not ended within its limit of real time."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Return a context in which ``TookTooLongError`` is raised after ``seconds`` of real time.

    The error is raised in the calling thread, at its next Python instruction.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    is_over = False
    lock = threading.Lock()  # so that no error is scheduled once the context has ended

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
        # cancels an error that has been scheduled in the thread and not raised yet
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


class ByTrainer(Reference):
    """Solver that calls the scenario's trainer for each device's training.

    The trainer gets a new copy of the module each time. An error is raised if the trainer returns
    tensors of wrong names or shapes, or draws random numbers without a seed.

    Args:
        module: the module.
        device: the torch device of the computation.
        trainer: the trainer, as ``training`` configures it.
        losses: computes the loss of each sample, [n]; None for softmax cross-entropy.

    Raises:
        ScenarioError: the trainer cannot train the model.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        trainer: Trainer,
        losses: Callable[..., Tensor] | None = None,
    ) -> None:
        super().__init__(module, device, losses=losses)
        self._trainer = trainer
        trainer.check_model(self._template, usual_loss=self.has_usual_loss)

    def solve(self, inputs: LocalSolve, descent: Descent) -> Solved:
        """Train by the scenario's trainer.

        Args:
            inputs: the device's start model, samples and batches.
            descent: the rule of an SGD step: learning rate, terms and frozen weights.

        Raises:
            SimulationError: the trainer draws from a global random generator or from one without a
                seed, or it returns a value that is not allowed.
        """
        if not inputs.batches.steps:
            return Solved(inputs.copied_start(), float("nan"), state=inputs.state or {})
        # a new copy, as a trainer may leave anything on a module, such as hooks
        copied_module = ModuleCopy(self._template)
        # a check of the module, by plain SGD on other copies: its draws must be repeatable
        self._repeat_first_steps(inputs, descent)
        # The trainer may draw only from a generator of its own, seeded by ``context.seed``. Draws
        # from global generators change their states. ``entropy_watched`` finds unseeded generators.
        states_before = global_states(self.device)
        with (
            self.training_context(copied_module, inputs, descent) as (trained, context),
            entropy_watched() as draw_places,
        ):
            # the trainer gets no gradients of frozen tensors, whose rule has the learning rate 0
            for name, rule in rules(descent, trained).items():
                trained[name].requires_grad_(trained[name].requires_grad and rule.lr > 0)
            outcome = self._call_trainer(copied_module.module, context)
        self._refuse_draws(find_draws(states_before, self.device), draw_places)
        return self._read_outcome(outcome, trained, context, inputs, descent)

    def _refuse_draws(self, generators: list[str], draw_places: list[str]) -> None:
        """Raise ``SimulationError`` if the trainer has drawn random numbers that are not seeded.

        Args:
            generators: names of the global generators from which the trainer has drawn.
            draw_places: files and lines of draws from the operating system's entropy.
        """
        if generators:
            raise SimulationError(
                f"{self._label} draws from the global generator of {' and of '.join(generators)}, "
                "so that results would depend on the order "
                "of the work; allowed is a generator of its own, seeded by context.seed"
            )
        if draw_places:
            raise SimulationError(
                f"{self._label} draws from a generator that nobody seeds, at "
                f"{', '.join(draw_places[:MOST_SHOWN])}; allowed is a generator of its own, seeded "
                "by context.seed"
            )

    @property
    def _label(self) -> str:
        """Text that names the trainer, for error messages."""
        return f"training.kind {self._trainer.kind!r}"

    def _call_trainer(self, module: nn.Module, context: TrainingContext) -> object:
        """Call the trainer, and interrupt it after its limit of real time.

        Args:
            module: the module to train.
            context: the device's data and the settings of the training.

        Returns:
            The trainer's return value, unchecked.

        Raises:
            SimulationError: the trainer raises an error, or takes too long.
        """
        trainer = self._trainer
        where = f"on device {context.device} in round {context.round}"
        try:
            with interrupted_after(trainer.real_limit):
                return trainer.train(module, context.data, context)
        except TookTooLongError as error:
            raise SimulationError(
                f"{self._label} still trains {where} after {trainer.real_limit:g} s of real "
                f"time{place_of(error)}; allowed "
                "is a training that ends, or a longer training.real_limit"
            ) from error
        except FedsimError:
            raise
        except Exception as error:
            message = f"{self._label} failed {where}: {show_failure(error)}"
            raise SimulationError(message) from error

    def _read_outcome(
        self,
        outcome: Any,
        trained: Mapping[str, Tensor],
        context: TrainingContext,
        solve: LocalSolve,
        descent: Descent,
    ) -> Solved:
        """Check the return value of a trainer, and convert it to the result of a training.

        Args:
            outcome: the return value, which should be two mappings: name -> trained tensor, and
                name -> number that the trainer reports.
            trained: name -> tensor of the module that is trained and sent.
            context: the context of the training, with the trainer's state.
            solve: the inputs of the training.
            descent: the rule of a step.

        Raises:
            SimulationError: the return value is not two such mappings, a trained tensor is missing
                or has a wrong shape, or the trainer's state has a value that is no tensor.
        """
        try:
            tensors, numbers = outcome
            for name, model_tensor in trained.items():
                self._check_tensor(tensors, name, model_tensor)
            weights = flat_result([tensors[name] for name in trained], solve, descent)
            reports = {str(name): float(value) for name, value in numbers.items()}
            state = {}
            for name, value in context.state.items():
                state[name] = np.atleast_1d(to_host(value).copy())
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise SimulationError(
                f"{self._label} gave back {show_value(outcome)}, and its state is "
                f"{show_value(context.state)}; it must give back two mappings: "
                "trained tensors (model.state_dict()) and numbers by name, and the state has "
                f"tensors: {error}"
            ) from error
        loss = reports.pop("loss", context.train_loss)
        if self._trainer.stops_early:  # it may have trained on a part of the batches
            batches = context.data.taken
            samples_in_batch = context.data.counts
            reports["batches"] = float(batches)
            reports["share"] = sum(samples_in_batch[:batches]) / sum(samples_in_batch)
        if self._trainer.state == "fresh":  # the device's next training begins without a state
            state = {}
        return Solved(weights, loss, reports, state)

    def _check_tensor(self, tensors: Mapping[str, Tensor], name: str, model_tensor: Tensor) -> None:
        """Raise ``SimulationError`` if a trainer's result lacks a tensor or its shape is wrong.

        Args:
            tensors: name -> tensor that the trainer has returned.
            name: name of a tensor of the model.
            model_tensor: the tensor of the model, whose shape is required.
        """
        if name not in tensors:
            names = [str(key) for key in tensors]
            listed = ", ".join(names) or "nothing"
            raise SimulationError(
                f"{self._label} gave back no tensor {name!r} of the model; it gave "
                f"{listed}{nearest(name, names)}"
            )
        shape = tensors[name].shape
        if shape != model_tensor.shape:
            raise SimulationError(
                f"{self._label} gave back {name!r} in the shape {[*shape]}; it must be "
                f"{[*model_tensor.shape]}"
            )
