"""Client code of a strategy: one ``Client`` object for all devices with equal training settings."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedsim.common.spec import Spec
from fedsim.federation.client import Client, RunInfo
from fedsim.federation.local_trainings import LocalTrainings

AnyClient = Client[Any]

_MAX_CACHED = 4_096  # size of the cache of ``Client`` objects; others are built again when needed


class ClientHalves:
    """The client half of a strategy: its code for devices, with the settings of each device.

    Devices with the same local epochs and learning rate share a ``Client`` object.

    Args:
        make: function that builds a ``Client`` from the keys of ``[strategy]`` and a ``RunInfo``.
        params: the keys of ``[strategy]``.
        setting: properties of the run, which the client code reads.
        local: learning rate, batch size and steps of each device's trainings.
    """

    def __init__(
        self,
        make: Callable[[Spec, RunInfo], AnyClient],
        params: Spec,
        setting: RunInfo,
        local: LocalTrainings,
    ) -> None:
        self._make = make  # builds a ``Client``
        self._params = params
        self._setting = setting
        self._local = local  # each device's own settings of training
        self._default = make(params, setting)  # for all devices, if they train alike
        # count of epochs, rule of the learning rate -> ``Client`` of the devices that have both
        self._half_for = lru_cache(maxsize=_MAX_CACHED)(self._build)

    def of(self, device: int) -> AnyClient:
        """Return the ``Client`` object whose methods are called for a device."""
        local = self._local
        if local.settings is None:
            return self._default
        return self._half_for(local.epochs(device), local.lr_in(device))

    def _build(self, epochs: int, lr_in: Callable[[int], float] | None) -> AnyClient:
        """Build the ``Client`` object of the devices that have given training settings.

        Args:
            epochs: count of local epochs; 0 for the count in ``[strategy]``.
            lr_in: function that returns the learning rate of a round; None for the rate of
                ``[training]``.
        """
        params = self._params
        setting = self._setting
        if epochs:
            params = params.model_copy(update={"local_epochs": epochs})
        if lr_in is not None:
            setting = replace(setting, lr_in=lr_in)
        return self._make(params, setting)
