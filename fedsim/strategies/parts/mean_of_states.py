"""Server-side mean of a state that every device has, as in SCAFFOLD and FedDyn."""

from collections.abc import Sequence
from functools import partial

from fedsim.federation import Server
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Aggregation, Entry


async def mean_after_changes(
    server: Server,
    aggregation: Aggregation,
    states: dict[int, Ref],
    mean: Ref,
    entries: Sequence[Entry],
    changes: Sequence[Ref],
) -> Ref:
    """Return the mean of all N devices' states after K clients have changed their states.

    A state is an array that each device has, such as its control variate in SCAFFOLD. By default
    the result is mean + sum of changes / N. With a robust aggregation it is (1 - K / N) mean +
    K / N times the aggregation of the K states: a sum of changes would accumulate the changes of
    malicious clients over the rounds. Changes and states that are not finite are left out.

    Args:
        server: API of the strategy's server code, with ``models`` for arithmetic.
        aggregation: the aggregation of the scenario.
        states: device -> its state, which is updated if the aggregation is robust, else unused.
        mean: the mean before the changes.
        entries: the updates of the K clients.
        changes: the change of each client's state, in the same order.

    Returns:
        The new mean, with the length of ``mean``.
    """
    add = partial(server.models.mix, rescale=False)
    weight = 1.0 / server.setting.devices  # weight of one device's state in the mean
    if aggregation.protection != "robust":
        weighted_changes = [(change, weight) for change in changes]
        return add([(mean, 1.0), *weighted_changes], otherwise=mean)
    # robust: the states themselves are aggregated
    devices = [entry["device"] for entry in entries]
    for device, change in zip(devices, changes, strict=True):
        before = states.get(device) or server.models.zero()
        states[device] = add([(before, 1.0), (change, 1.0)])
    client_states = [states[device] for device in devices]
    # models and coefficients, whose sum is K / N times the aggregation of the K states
    combined = await aggregation.total(server, client_states, weight)
    return add([(mean, 1.0 - weight * len(entries)), *combined], otherwise=mean)
