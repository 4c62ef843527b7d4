"""Checks and table columns for settings of local training that differ by device.

The settings are in the table ``[population.local]`` of a scenario.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.wording import explain
from fedsim.records.schema import OWN_TRAINING
from fedsim.strategies.params import StrategyParams
from fedsim.world.own_training import OwnTraining

if TYPE_CHECKING:
    from fedsim.running.sections import Sections


def check_local_keys(scenario: "Sections") -> Iterator[str]:
    """Yield a message for each key of ``[population.local]`` that the strategy does not accept.

    These keys give each device its own epochs, learning rate and so on. The strategy's rule of
    selection may refuse keys too.
    """
    local = scenario.population.local
    strategy = scenario.strategy
    if local is None:
        return
    if strategy.traits.brings_learning:
        yield (
            f"population.local is given, and strategy.kind = {strategy.kind!r} brings its own "
            "learning; leave it out"
        )
        return
    # key -> why the strategy does not accept it for single devices
    reason_by_key = {**strategy.why_not.by_device}
    if "local_epochs" not in strategy.takes():
        # both keys would replace ``local_epochs``
        for key in ("epochs", "steps"):
            reason_by_key[key] = "its devices do not train for 'local_epochs'"
    if strategy.selected_by is not None:
        reason_by_key |= strategy.selected_by.not_by_device
    for key in local.keys:
        if key in reason_by_key:
            yield (
                f"population.local.{key} is given, which {strategy.called} does not take by "
                f"device: {reason_by_key[key]}"
            )


def check_epochs(params: StrategyParams, settings: OwnTraining | None) -> None:
    """Check that the strategy accepts the count of local epochs of each device.

    Args:
        params: the keys of ``[strategy]``.
        settings: the settings of each device's local training; None if all devices train alike.

    Raises:
        ScenarioError: the strategy refuses the epochs of a device.
    """
    if settings is None:
        return
    # a training whose count of steps is given counts as one epoch
    epochs_of_device = np.where(settings.steps != 0, 1, settings.epochs)
    # each count is checked once, by the strategy's checks of ``local_epochs``
    counts, first_devices = np.unique(epochs_of_device, return_index=True)
    table = params.model_dump(mode="python", exclude_none=True)
    for epochs, device in zip(counts.tolist(), first_devices.tolist(), strict=True):
        if not epochs:  # the device trains for the epochs in [strategy]
            continue
        try:
            type(params).model_validate({**table, "local_epochs": epochs})
        except ValidationError as error:
            reason = explain(error, table)
            raise ScenarioError(
                f"population.local gives device {device} {epochs} epochs: {reason}"
            ) from None


def own_columns(settings: OwnTraining | None, devices: Ints) -> dict[str, Floats]:
    """Return the columns of ``devices.parquet`` on each device's own settings of local training.

    The columns are ``local_epochs``, ``local_steps``, ``batch_size`` and ``lr``.

    Args:
        settings: the settings of ``[population.local]`` by device; None without this section.
        devices: IDs of the devices in the table.

    Returns:
        Name of a column -> values, float64 [len(devices)]. NaN means that a device has no own value
        and uses the value of ``[training]`` or ``[strategy]``. The dict is empty if ``settings`` is
        None.
    """
    if settings is None:
        return {}
    columns = {}
    for key, column in OWN_TRAINING.items():
        values = getattr(settings, key)[devices].astype(np.float64)  # 0: the device has no value
        columns[column.name] = np.where(values == 0, np.nan, values)
    return columns
