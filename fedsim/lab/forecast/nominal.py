"""Forecasts without simulating: sizes, and the times of devices that have their links for themselves."""

import math

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.language.units import show_bytes, show_seconds
from fedsim.running.assembly import Run
from fedsim.strategies.round_params import RoundParams

_CHECKED_BATCHES = range(16, 65)
_SHOWN = 100_000  # devices whose times are reckoned, of too many for all


def nominal_lines(run: Run) -> list[str]:
    """Say what is known of a run that has been built and not begun."""
    dispatch, stop, devices = run.dispatch, run.scenario.stop, run.scenario.population.devices
    shares_host = run.scenario.population.host is not None
    step = 1 if run.tells_all_devices else devices // _SHOWN
    looked_at = range(0, devices, step)
    epoch_s = run.population.epochs_s(slice(0, devices, step))
    nominal_s, near = run.tasks.nominal_s, run.scenario.strategy.at_edges
    down_bytes, up_bytes = (wire.model_bytes + run.learner.state_bytes for wire in (dispatch.down, dispatch.up))
    down = np.array([nominal_s(device, "down", down_bytes, near=near) for device in looked_at])
    up = np.array([nominal_s(device, "up", up_bytes, near=near) for device in looked_at])
    decode_s, encode_s = dispatch.down.model_s, dispatch.up.model_s
    samples = run.samples[::step]
    lines = [
        f"{devices} devices with {int(run.samples.sum())} training samples "
        f"({int(run.samples.min())} to {int(run.samples.max())} a device, median {int(np.median(samples))})",
        *([f"of these {len(looked_at)} were looked at for the times below"] if step > 1 else []),
        f"a model of {run.learner.parameters} parameters; {show_bytes(down_bytes)} down, {show_bytes(up_bytes)} up",
        *([f"and {show_bytes(base)} of frozen tensors, once to each device"] if (base := run.learner.base_bytes) else []),
        f"alone on its link a device downloads in {_range(down)}, uploads in {_range(up)}",
        f"an epoch takes it {_range(epoch_s)}",
        *(["these and the times below are those of a device that has its host to itself"] if shares_host else []),
    ]
    given = run.scenario
    lines += [f"this {guessed}"] if (guessed := run.estimates) else []
    size = given.training.batch_size
    if run.population.rooflines is not None and size not in _CHECKED_BATCHES:
        lines.append(
            f"times of batches of {size} samples are less certain: they were compared with real ones at 16 to 64 (docs/time.md)"
        )
    params = run.scenario.strategy
    lines += _beyond_the_log(run)
    if isinstance(params, RoundParams) and stop.rounds is not None:
        task_s = _task_s(params, run.strategy.setting.mean_epoch_s, down, epoch_s, up) + decode_s + encode_s
        lines += _round_lines(run, params, stop.rounds, task_s, samples)
    return lines + stop.notes


def _beyond_the_log(run: Run) -> list[str]:
    """A note if another number of clients works at a time than in the log that the world was fitted to."""
    fitted, params, devices = run.scenario.population.fitted_at_once, run.scenario.strategy, run.scenario.population.devices
    at_once = params.cohort_size(devices) if isinstance(params, RoundParams) else getattr(params, "concurrency", devices)
    here = min(at_once, devices)
    if fitted is None or fitted == here:
        return []
    unknown = "whether a link that they share carries so much" if here > fitted else "own links that a shared one hid"
    return [f"links were fitted to {fitted} clients at a time, and {here} work here: the log does not tell {unknown}"]


def _task_s(params: RoundParams, mean_epoch_s: float, down: Floats, epoch_s: Floats, up: Floats) -> Floats:
    """Time that each device works in a round, with the deadline (s), [devices]."""
    limit, training = params.deadline_s(mean_epoch_s), params.local_epochs * epoch_s
    if limit is None:
        return down + training + up
    if params.bounds_training:
        return down + np.minimum(training, limit) + up
    return np.minimum(down + training + up, limit)


def _round_lines(run: Run, params: RoundParams, rounds: int, task_s: Floats, samples: Ints) -> list[str]:
    """The cost of rounds if all devices are there: a round lasts as long as its slowest client or its deadline."""
    asked = params.cohort_size(run.scenario.population.devices)
    round_s, trained = expected_maximum(task_s, min(asked, len(task_s))) * params.turns, asked * params.turns
    apart_s = round_s if params.every is None else math.ceil(round_s / params.every) * params.every
    messages = trained + (min(asked, run.scenario.network.edge_servers) if params.at_edges else 0)
    traffic = messages * (run.dispatch.down.model_bytes + run.dispatch.up.model_bytes + 2 * run.learner.state_bytes)
    once = run.learner.base_bytes * min(run.scenario.population.devices, rounds * messages)
    steps = np.ceil(samples / run.scenario.training.batch_size).mean() * params.local_epochs * trained
    gigaflops = run.samples.mean() * params.local_epochs * trained * run.learner.flops_per_sample / 1e9
    return [
        f"a round asks {asked}: at most {show_bytes(traffic)}, about {show_seconds(round_s)} of simulated time, "
        f"{steps:.0f} steps of SGD ({gigaflops:.3g} GFLOP)",
        f"{rounds} rounds: at most {show_bytes(rounds * traffic + once)}, "
        f"about {show_seconds(rounds * apart_s)} of simulated time",
    ]


def expected_maximum(values: Floats, drawn: int) -> float:
    """The mean of the largest of ``drawn`` values, drawn uniformly without replacement out of ``values``.

    All of them lie among the i smallest with probability C(i, drawn) / C(n, drawn).
    """
    from scipy.special import gammaln

    n = len(values)
    smallest = np.arange(drawn, n + 1)
    log_share = gammaln(smallest + 1) - gammaln(smallest - drawn + 1) - gammaln(n + 1) + gammaln(n - drawn + 1)
    return float(np.diff(np.exp(log_share), prepend=0.0) @ np.sort(values)[drawn - 1 :])


def _range(seconds: Floats) -> str:
    low, middle, high = (show_seconds(float(value)) for value in (seconds.min(), np.median(seconds), seconds.max()))
    return f"{middle} (median; {low} to {high})"
