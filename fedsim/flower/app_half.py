"""Loading of a ServerApp or ClientApp, isolated from all other apps of the process."""

import logging
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch  # imported here, as torch's generator is seeded before an app is loaded

from fedsim.flower.app import App, Half
from fedsim.flower.app_errors import is_within

States = tuple[Any, Any, torch.Tensor]  # of the generators of random, numpy and torch


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
        for name in self._module_names():
            del sys.modules[name]  # may have the state of another run
        with self.in_use(seed):
            self.loaded = app.load(half)
            self._states = _generator_states()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Context manager in which the process has this app's modules and random states.

        torch runs in one thread meanwhile. At the end the process gets back its own modules, random
        states and threads.

        Args:
            seed: seed of the global random generators. None: they continue from the states that
                they had at the end of the last context without a seed, or of loading the app if
                there was none.
        """
        outer_states = _generator_states()
        threads = torch.get_num_threads()
        log = logging.getLogger("flwr")
        level = log.level
        folder = str(self._folder)
        if seed is None:
            _restore_generators(self._states)
        else:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)  # sums in several threads differ in their last bits
        if "FLWR_LOG_LEVEL" not in os.environ:
            log.setLevel(logging.WARNING)
        sys.path.insert(0, folder)
        sys.modules.update(self._modules)
        module_count = len(sys.modules)
        try:
            yield
        finally:
            if len(sys.modules) != module_count:  # the app has imported modules meanwhile
                for name in self._module_names():
                    self._modules[name] = sys.modules[name]
            for name in self._modules:
                sys.modules.pop(name, None)
            if folder in sys.path:
                sys.path.remove(folder)
            log.setLevel(level)
            torch.set_num_threads(threads)
            if seed is None:
                self._states = _generator_states()
            _restore_generators(outer_states)

    def _module_names(self) -> list[str]:
        """Return the names in ``sys.modules`` whose files are in the app's folder."""
        modules = list(sys.modules.items())
        return [name for name, module in modules if is_within(self._folder, _location(module))]


def _location(module: ModuleType) -> str:
    """Return the path of a module's file, or of a namespace package's first folder.

    Empty if it has neither.
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
