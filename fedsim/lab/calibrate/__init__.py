"""From a log of a real deployment to a world to simulate: ``fedsim calibrate``.

``log`` reads the log, ``fitting`` finds devices and links in it, ``replay`` predicts its rounds
with the simulator, ``files`` writes the scenario and the tables. Rounds that are held out are
predicted, and not fitted to.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from fedsim.common.errors import DataError
from fedsim.lab.calibrate.files import SCENARIO, drawn, summary, write
from fedsim.lab.calibrate.fitting import fit, presence
from fedsim.lab.calibrate.log import LogDefaults, read_log
from fedsim.lab.calibrate.replay import held_out, predict
from fedsim.records.reading import RunFolder
from fedsim.world.network.protocol import PROTOCOLS, Protocol, ProtocolSpec

_DRAWS = 20  # worlds, or jitters, that a prediction is the mean of


def calibrate(
    path: Path,
    out: Path,
    defaults: LogDefaults,
    *,
    by_client: bool = False,
    latency: float | None = None,
    protocol: Literal["fluid", "tcp", "bbr"] | None = None,
) -> list[str]:
    """Fit a world to a log and write it as a scenario with tables of clients and of rounds;
    returns lines for people.

    Args:
        path: the log, or a run folder.
        out: a folder; files of an earlier calibration are replaced.
        defaults: values that the log lacks.
        by_client: write each client's own values, and not distributions.
        latency: of all clients (s), if it is known.
        protocol: of the messages; by default a run folder's protocol, or else fluid.

    Raises:
        DataError: the log is missing, malformed, or too short; or its protocol is unknown.
        RunFolderError: a file cannot be read or written.
    """
    log = read_log(path, defaults)
    held = held_out(log)
    mine = log.tasks[~np.isin(log.tasks.number, log.rounds.number[held])]
    fitted = fit(mine, len(log.clients), latency, _protocol(path, protocol))
    there = presence(log)
    alike = log.synchronous and not fitted.world.jitter and not fitted.world.protocol.weighs
    prediction = predict(log, held, [fitted.world] * (1 if alike else _DRAWS))
    lines = [*summary(fitted, log, there), *prediction.summary("with each client's own values")]
    if not by_client:
        worlds = [drawn(fitted.world, seed) for seed in range(_DRAWS)]
        lines += predict(log, held, worlds).summary("with clients drawn as the scenario does")
    write(out, path.name, log, fitted, by_client, there, prediction)
    return [*lines, *(f"note: {note}" for note in log.notes), f"written to {out}"]


def _protocol(path: Path, name: str | None) -> Protocol:
    """By its name, or that of a run folder, whose own code is never imported."""
    spec: Any = name or "fluid"
    if name is None and (path / SCENARIO).is_file():
        spec = RunFolder(path).scenario["network"].get("protocol") or spec
    kind = spec if isinstance(spec, str) else spec["kind"]
    if kind not in PROTOCOLS.kinds:
        raise DataError(
            f"the run {str(path)!r} has a protocol of its own, {kind!r}; say --protocol fluid, "
            "tcp or bbr"
        )
    return TypeAdapter(ProtocolSpec).validate_python(spec)
