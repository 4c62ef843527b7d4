"""Loading of a ServerApp or ClientApp, isolated from all other apps of the process."""

import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch  # imported here, as torch's generator is seeded before an app is loaded

from fedsim.flower.app import App, Half
from fedsim.flower.app_errors import is_within
from fedsim.flower.turns import RunOver

States = tuple[Any, Any, torch.Tensor]  # states of the generators of ``random``, numpy and torch

# Held while an app is in use, as modules and random generators belong to the whole process. At the
# end of a run the ServerApp may run once more while a ClientApp still computes in another thread.
_process = threading.Lock()


class AppHalf:
    """A loaded ServerApp or ClientApp, with modules and random states that no other app shares.

    Args:
        app: Flower app to load.
        half: ``server`` for the ServerApp, ``client`` for the ClientApp.
        seed: seed of the global random generators during loading (below 2**32).

    Attributes:
        loaded: the ServerApp or the ClientApp.
    """

    def __init__(self, app: App, half: Half, seed: int) -> None:
        self._folder = app.folder
        self._modules: dict[str, ModuleType] = {}
        # a use is a context of ``in_use``
        self._lock = threading.Lock()  # held while a use begins or ends
        self._use = ExitStack()  # the present use; to close the stack ends the use
        self._is_closed = False
        for name in self._module_names():
            del sys.modules[name]  # a loaded module may have the state of another run
        with self.in_use(seed):
            self.loaded = app.load(half)
            self._states = _generator_states()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Context manager in which the process has this app's modules and random states.

        The context begins when no other app of the process is in use. torch runs in one thread
        meanwhile. At the end the process gets back its own modules, random states and threads.

        Args:
            seed: seed of the global random generators. None: they continue from the states that
                they had at the end of the last context without a seed, or of loading the app if
                there was none.

        Raises:
            RunOver: ``close`` was called before.
        """
        use = ExitStack()
        use.enter_context(_process)
        try:
            with self._lock:
                if self._is_closed:
                    raise RunOver
                self._begin(use, seed)
                self._use = use
        except BaseException:
            use.close()
            raise
        try:
            yield
        finally:
            with self._lock:
                use.close()  # has no effect after ``close``

    def at_end_of_use(self, function: Callable[[], object]) -> None:
        """Call a function when the present context of ``in_use`` ends, also if ``close`` ends it.

        Args:
            function: the function, without arguments.

        Raises:
            RunOver: ``close`` has ended the context before this call. The function is then called
                first.
        """
        with self._lock:
            if not self._is_closed:
                self._use.callback(function)
                return
        function()
        raise RunOver

    def close(self) -> None:
        """End the present context of ``in_use``, if any; a later ``in_use`` raises ``RunOver``.

        A thread that computes without end never leaves ``in_use``. This method takes the app's
        modules away from the thread, so that other runs in the process do not see them.
        """
        with self._lock:
            self._is_closed = True
            self._use.close()

    def _begin(self, use: ExitStack, seed: int | None) -> None:
        """Give the process the app's modules and random states.

        Args:
            use: stack to which the functions are added that undo each change.
            seed: as in ``in_use``.
        """
        use.callback(_restore_generators, _generator_states())
        if seed is None:
            use.callback(self._keep_states)
            _restore_generators(self._states)
        else:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        use.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # sums in several threads differ in their last bits
        log = logging.getLogger("flwr")
        use.callback(log.setLevel, log.level)
        if "FLWR_LOG_LEVEL" not in os.environ:
            log.setLevel(logging.WARNING)
        names = set(sys.modules)
        use.callback(self._take_modules, names)
        sys.path.insert(0, str(self._folder))
        sys.modules.update(self._modules)

    def _keep_states(self) -> None:
        self._states = _generator_states()

    def _take_modules(self, names_before: set[str]) -> None:
        """Remove the app's modules from ``sys.modules`` and keep them for the next use.

        Args:
            names_before: names in ``sys.modules`` before this use.
        """
        if not sys.modules.keys() <= names_before | self._modules.keys():
            for name in self._module_names():  # the app has imported modules meanwhile
                self._modules[name] = sys.modules[name]
        for name in self._modules:
            sys.modules.pop(name, None)
        folder = str(self._folder)
        if folder in sys.path:
            sys.path.remove(folder)

    def _module_names(self) -> list[str]:
        """Return the names in ``sys.modules`` whose files are in the app's folder."""
        modules = list(sys.modules.items())
        return [name for name, module in modules if is_within(self._folder, _location(module))]


def _location(module: ModuleType) -> str:
    """Return the path of a module's file, or of a namespace package's first folder.

    Empty if the module has neither.
    """
    try:
        file = getattr(module, "__file__", None)
        if file:
            return str(file)
        folders = iter(getattr(module, "__path__", ()))
        return str(next(folders, ""))
    except Exception:  # attributes of a module may run any code
        return ""


def _generator_states() -> States:
    return (
        random.getstate(),
        np.random.get_state(legacy=False),  # noqa: NPY002
        torch.default_generator.get_state(),
    )


def _restore_generators(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.default_generator.set_state(states[2])
