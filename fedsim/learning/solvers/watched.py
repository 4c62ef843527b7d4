"""Copies of a user's module for each thread, and checks that they carry no state between devices.

A copy serves many devices in turn. Its flat model (the tensors that are trained and sent) is loaded
before each use, and no other state may pass from device to device. If a use changes memory outside
the flat model (``read_memory``), the copy is dropped, and the use is repeated with equal inputs. If
the repetition has another result, or changes the memory again, an error is raised. Otherwise the
memory is a cache, or a record of the last pass.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedsim.common.errors import FedsimError, ScenarioError, SimulationError, place_of
from fedsim.learning.draws import find_draws, global_states
from fedsim.learning.entropy import entropy_watched
from fedsim.learning.hidden_memory import Token, differences, read_memory
from fedsim.learning.modules import copy_module, trained_tensors

R = TypeVar("R")
_CHECK_INTERVAL = 8  # count of trainings between two checks of the state that a module keeps
_TRIES = 3  # repetitions after which draws are attributed to the module, not to another thread

MOST_SHOWN = 5
"""Greatest count of names or places in an error message."""


class ModuleCopy:
    """A thread's copy of a torch module, in which it trains and tests the models of many devices.

    Weights are loaded into the copy's *flat model* before each use: the trained parameters and the
    float buffers that are sent. All else that the module remembers, such as an attribute that its
    ``forward`` sets, could pass from one device to the next. To detect this, ``Watch`` compares the
    module's memory after a use with ``outer_memory``.

    Args:
        template: the module that is copied.
        is_watched: whether ``outer_memory`` is recorded, for modules of users.

    Attributes:
        module: the copy.
        model_tensors: name -> tensor of the flat model, as it was copied.
        outer_memory: the result of ``read_memory`` for the new copy: name of an attribute or
            global -> comparable value; empty if ``is_watched`` is False.
        uses: count of trainings and tests with this copy.
    """

    def __init__(self, template: nn.Module, *, is_watched: bool = False) -> None:
        self.module = copy_module(template)
        tensors = trained_tensors(self.module)
        self.model_tensors = tensors
        # (submodule, name, tensor): a forward pass may replace buffers, and ``restore`` undoes that
        self._model_buffers: list[tuple[nn.Module, str, Tensor]] = []
        for name, tensor in tensors.items():
            part_name, _, key = name.rpartition(".")
            part = self.module.get_submodule(part_name)
            if key in part._buffers:
                self._model_buffers.append((part, key, tensor))
        # all other memory of the module before its first use
        self.outer_memory: dict[str, Token] = {}
        if is_watched:
            self.outer_memory = read_memory(self.module, tensors)
        self.uses = 0

    def restore(self) -> None:
        """Put back the original tensors of buffers that a forward pass has replaced.

        Only float buffers that are sent with the parameters are put back.
        """
        for part, key, tensor in self._model_buffers:
            part._buffers[key] = tensor

    def is_replaced(self, name: str) -> bool:
        """Return whether a forward pass has put another tensor in place of a buffer's original.

        Args:
            name: torch's name of a buffer that is sent, such as ``1.running_mean``.
        """
        original = self.model_tensors[name]
        owners = [(part, key) for part, key, tensor in self._model_buffers if tensor is original]
        return any(part._buffers.get(key) is not original for part, key in owners)

    def trained_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the module's flat model after a training.

        These are the trained parameters, and the float buffers that are sent with them. If a
        forward pass has replaced the tensor of a buffer, the result has the new tensor.

        Returns:
            Torch's name -> tensor.

        Raises:
            ScenarioError: the training has replaced a parameter, or changed the shape of a tensor.
        """
        return {name: self._trained_tensor(name) for name in self.model_tensors}

    def _trained_tensor(self, name: str) -> Tensor:
        """Return a tensor of the module; raise for a replaced parameter, or a changed shape."""
        original = self.model_tensors[name]
        part_name, _, key = name.rpartition(".")
        part = self.module.get_submodule(part_name)
        tensor = {**part._parameters, **part._buffers}.get(key)  # None if it has been removed
        is_buffer = not isinstance(original, nn.Parameter)
        is_allowed = tensor is original or is_buffer
        if is_allowed and tensor is not None and tensor.shape == original.shape:
            return tensor.detach()
        replacement = "nothing"
        if tensor is not None:
            replacement = f"another of shape {tuple(tensor.shape)}"
        raise ScenarioError(
            f"the module of model.factory replaces its tensor {name!r} of shape "
            f"{tuple(original.shape)} by {replacement} in a "
            "training; allowed are changes of a buffer's numbers alone"
        )


class Watch:
    """Runner of trainings and tests of a module, which checks that they leave no hidden state.

    Hidden state is all that the module keeps outside its flat model, which consists of the trained
    parameters and the sent buffers. Each thread has its own copy of the module, which trains many
    devices in turn.

    Args:
        template: the module that is copied.
        device: the torch device of the computation.

    Attributes:
        is_on: whether trainings and tests are checked; not needed for fedsim's own modules.
        harmless: names of attributes and globals that trainings or tests change without an effect
            on their results, such as caches.
    """

    def __init__(self, template: nn.Module, device: torch.device) -> None:
        self._template = template
        self._device = device
        self._threads = threading.local()
        self.is_on = False
        self.harmless: set[str] = set()

    def __getstate__(self) -> dict[str, object]:
        state = dict(vars(self))
        state["_threads"] = None
        return state

    def __setstate__(self, state: Mapping[str, object]) -> None:
        vars(self).update(state, _threads=threading.local())

    def fresh(self) -> ModuleCopy:
        """Return a new copy of the module, which no training or test has used."""
        return ModuleCopy(self._template, is_watched=self.is_on)

    @property
    def has_trained(self) -> bool:
        """Whether the calling thread has begun a training of the module (``note_training``)."""
        return hasattr(self._threads, "has_trained")

    def note_training(self) -> None:
        """Set ``has_trained`` for the calling thread.

        In the first training of each thread, a solver carries out the first steps twice and
        compares the results. It calls this method, so that later trainings skip the check.
        """
        self._threads.has_trained = True

    def use(
        self,
        work: Callable[[ModuleCopy], R],
        is_same: Callable[[R, R], bool],
        where: str,
        *,
        trains: bool,
    ) -> R:
        """Run a training or test on this thread's copy of the module, and check for hidden state.

        A use is one training or one test. Hidden state is all that the module keeps outside its
        flat model (the trained parameters, and the buffers that are sent with them). If the
        attribute ``is_on`` is False, nothing is checked. Otherwise these uses are checked:

        - For random draws from global generators: every training, and a test if the copy's count
          of uses is a power of two.
        - For changes of hidden state: the copy's first trainings, later about every eighth
          training, and the same tests. A change persists, so that a later check finds it too.
        - For changes of hidden state, once a change without effect on results is known
          (``harmless``): every use.

        Args:
            work: loads weights into the copy, and computes.
            is_same: returns whether two results are bitwise equal.
            where: text that names the use, such as "in a test", for error messages.
            trains: whether the use is a training; else a test.

        Returns:
            The result of ``work``.

        Raises:
            SimulationError: the module raises an error, draws from a global generator or from the
                system's entropy, or changes hidden state in a way that is not ``harmless``.
        """
        copied_module = getattr(self._threads, "copy", None)
        if copied_module is None:
            copied_module = self.fresh()
            self._threads.copy = copied_module
        copied_module.uses += 1
        uses = copied_module.uses
        # checks are slow, and so become rarer with the count of uses
        is_due = _is_power_of_two(uses)
        if trains:
            is_due |= uses < _CHECK_INTERVAL or uses % _CHECK_INTERVAL == 0
        checks_memory = self.is_on and (is_due or bool(self.harmless))
        checks_draws = self.is_on and (is_due or trains)
        run = self._run_without_draws if checks_draws else _run
        result = run(copied_module, work, where)
        if checks_memory:
            self._check_memory(copied_module, work, result, is_same, where)
        return result

    def _run_without_draws(
        self, copied_module: ModuleCopy, work: Callable[[ModuleCopy], R], where: str
    ) -> R:
        """Run a training or test, and raise if it draws random numbers that cannot be repeated.

        Args:
            copied_module: the copy of the module.
            work: computes with the copy.
            where: text that names the use, for error messages.

        Returns:
            The result of ``work``.

        Raises:
            SimulationError: the module draws from a global generator, or from the system's entropy.
        """
        states_before = global_states(self._device)
        with entropy_watched() as draw_places:
            result = run_user_code(lambda: work(copied_module), where)
        if draw_places:
            raise SimulationError(entropy_message(draw_places, where))
        if find_draws(states_before, self._device):
            self._refuse_draws(work, where)
        return result

    def _refuse_draws(self, work: Callable[[ModuleCopy], R], where: str) -> None:
        """Repeat a training or test, and raise if it draws from global random generators each time.

        If a repetition has no draws, the draws in earlier ones are attributed to another thread.

        Args:
            work: computes with a new copy of the module.
            where: text that names the use, for error messages.

        Raises:
            SimulationError: each repetition has draws.
        """
        for _ in range(_TRIES):
            states_before = global_states(self._device)
            run_user_code(lambda: work(self.fresh()), where)
            generators = find_draws(states_before, self._device)
            if not generators:
                return
        raise SimulationError(draws_message(generators, where))

    def _check_memory(
        self,
        copied_module: ModuleCopy,
        work: Callable[[ModuleCopy], R],
        result: R,
        is_same: Callable[[R, R], bool],
        where: str,
    ) -> None:
        """Check whether a training or test has changed what a module keeps outside its flat model.

        If it has, this thread's next use gets a new copy of the module. The training or test is
        repeated on the changed copy, unless all changes are known to be ``harmless``. Attributes
        whose change has no effect on the repetition are added to ``harmless``.

        Args:
            copied_module: the copy that was used.
            work: the training or test.
            result: result of ``work``.
            is_same: returns whether two results are bitwise equal.
            where: text that names the use, for error messages.

        Raises:
            SimulationError: the repetition has another result, or changes memory again.
        """
        module = copied_module.module
        flat = copied_module.model_tensors
        changes = differences(copied_module.outer_memory, read_memory(module, flat))
        if not changes:
            return
        self._threads.copy = None  # the next use gets a new copy
        new_changes = [name for name in changes if name not in self.harmless]
        if not new_changes:
            return
        # compared by value: a large tensor may be changed again, but must get the same values
        memory = read_memory(module, flat, by_value=True)
        repeated = run_user_code(lambda: work(copied_module), where)
        second_changes = differences(memory, read_memory(module, flat, by_value=True))
        if second_changes or not is_same(result, repeated):
            raise SimulationError(changed_memory_message(second_changes or new_changes, where))
        self.harmless.update(new_changes)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _run(copied_module: ModuleCopy, work: Callable[[ModuleCopy], R], where: str) -> R:
    return run_user_code(lambda: work(copied_module), where)


def run_user_code(
    work: Callable[[], R], where: str, error_type: type[FedsimError] = SimulationError
) -> R:
    """Call a function that runs a user's module or loss, and return its result.

    Args:
        work: the function, called without arguments.
        where: text that names the use, for error messages.
        error_type: type of the error that replaces an error of the user's code.

    Raises:
        FedsimError: the user's code raises an error; the message has the file and line.
    """
    try:
        return work()
    except FedsimError:
        raise
    except Exception as error:
        message = f"the model or its loss failed {where}: {show_failure(error)}"
        raise error_type(message) from error


def show_failure(error: Exception) -> str:
    """Format an error of a user's module, loss or trainer, with file and line if they are known."""
    if "modified by an inplace operation" in str(error):
        return (
            "a tensor is changed in place after its use, but torch needs its value for the "
            "gradient; allowed are changes before the first use, and of copies (targets.clone())"
        )
    return f"{type(error).__name__}: {error}{place_of(error)}"


def changed_memory_message(names: list[str], where: str) -> str:
    """Return the error message for a module whose attributes a training or test has changed.

    Args:
        names: names of the changed attributes or globals.
        where: text that names the use, such as "in a test".
    """
    return (
        f"the module of model.factory leaves {', '.join(map(repr, names[:MOST_SHOWN]))} changed "
        f"{where}; the next device on the same "
        "worker would find it so; allowed is state in persistent buffers of floats, which are "
        "part of the model "
        "(register_buffer), or none"
    )


def draws_message(names: list[str], where: str) -> str:
    """Return the error message for a module that draws from global generators.

    Args:
        names: names of the generators.
        where: text that names the use, such as "in a test".
    """
    return (
        "the module of model.factory draws from the global generator of "
        f"{' and of '.join(names)} {where}, so that results "
        "would depend on the order of the work; allowed are torch's draws in forward, which "
        "are keyed by device and step: "
        "torch.nn.functional.dropout, torch.rand and others"
    )


def entropy_message(places: list[str], where: str) -> str:
    """Return the error message for a module that draws from the operating system's entropy.

    Args:
        places: files and lines of the draws.
        where: text that names the use, such as "in a test".
    """
    return (
        f"the module of model.factory draws from a generator that nobody seeds {where}, at "
        f"{', '.join(places[:MOST_SHOWN])}: numpy.random.default_rng(), random.Random() or "
        "os.urandom, say; allowed are torch's draws in forward, which are keyed by device and step"
    )
