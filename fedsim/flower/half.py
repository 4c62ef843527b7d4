"""One half of a Flower app: while it is in use, the imported modules, global generators and torch threads are its own."""

import logging
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch  # its generator is seeded before an app imports it, perhaps only within a function

from fedsim.flower.app import App
from fedsim.flower.turns import is_within


class AppHalf:
    """The ServerApp or the ClientApp (``name``: ``server`` or ``client``), ``loaded`` with the generators at ``seed``."""

    def __init__(self, app: App, name: str, seed: int) -> None:
        self._folder = app.folder
        self._modules: dict[str, ModuleType] = {}
        for known in [known for known, module in sys.modules.items() if self._has(module)]:
            del sys.modules[known]  # of another run: they may remember things
        with self.in_use(seed):
            self.loaded = app.load(name)
            self._generators = _generators()

    @contextmanager
    def in_use(self, seed: int | None = None) -> Iterator[None]:
        """Within it modules, generators and threads are this half's.

        Without a ``seed`` for this once, generators continue from their last use without one.
        """
        outside, threads, log = _generators(), torch.get_num_threads(), logging.getLogger("flwr")
        place, level = str(self._folder), log.level
        if seed is None:
            _set_generators(self._generators)
        else:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        torch.set_num_threads(1)  # sums of several threads have other last bits
        if "FLWR_LOG_LEVEL" not in os.environ:
            log.setLevel(logging.WARNING)
        sys.path.insert(0, place)
        sys.modules.update(self._modules)
        count = len(sys.modules)
        try:
            yield
        finally:
            if len(sys.modules) != count:
                self._modules |= {name: module for name, module in sys.modules.items() if self._has(module)}
            for name in self._modules:
                sys.modules.pop(name, None)
            if place in sys.path:
                sys.path.remove(place)
            log.setLevel(level)
            torch.set_num_threads(threads)
            if seed is None:
                self._generators = _generators()
            _set_generators(outside)

    def _has(self, module: ModuleType) -> bool:
        """Whether a module lies in the app's folder; a package without a file has places alone."""
        try:
            file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        except Exception:  # a module may do anything when asked
            return False
        return is_within(self._folder, str(file))


def _generators() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()  # noqa: NPY002


def _set_generators(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.default_generator.set_state(states[2])
