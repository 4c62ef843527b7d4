"""Fits a simulated world to the log of a real deployment, for ``fedsim calibrate``.

``log`` reads the log, ``fitting`` estimates devices and links with the searches of ``links``,
``replay`` predicts the log's rounds with the simulator, and ``files`` writes the scenario and the
tables. Some rounds are held out: they are predicted, but the world is not fitted to them.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from fedsim.common.errors import DataError
from fedsim.lab.calibrate.files import SCENARIO, describe, draw_clients, write_files
from fedsim.lab.calibrate.fitting import fit
from fedsim.lab.calibrate.log import LogDefaults, read_log
from fedsim.lab.calibrate.outlook import keep_unrefuted, predict_outlooks
from fedsim.lab.calibrate.presence import estimate_presence
from fedsim.lab.calibrate.replay import choose_held_out, predict
from fedsim.records.reading import RunFolder
from fedsim.world.network.protocol import PROTOCOLS, Protocol, ProtocolSpec

_DRAWS = 20  # count of worlds, or of seeds of jitter, over which a prediction is averaged


def calibrate(
    path: Path,
    out: Path,
    defaults: LogDefaults,
    *,
    by_client: bool = False,
    latency: float | None = None,
    protocol: Literal["fluid", "tcp", "bbr"] | None = None,
) -> list[str]:
    """Fit clients' speeds and links to the log of a deployment, and write them as a scenario.

    ``fedsim calibrate`` calls it. Tables of the clients and of the rounds are written too.

    Args:
        path: the log file or folder, or a run folder.
        out: folder to write to; files of an earlier calibration are replaced.
        defaults: values of columns that the log lacks.
        by_client: whether to write each client's own values instead of distributions.
        latency: latency of all clients (s); None to fit each client's latency.
        protocol: protocol of the messages; by default the run folder's protocol, or fluid for other
            logs.

    Returns:
        Lines of text that describe the calibration, for users.

    Raises:
        DataError: the log is missing, malformed, or too short, or its protocol is unknown.
        RunFolderError: a file cannot be read or written.
    """
    log = read_log(path, defaults)
    is_held_out = choose_held_out(log)
    is_fitted = ~np.isin(log.tasks.number, log.rounds.number[is_held_out])
    fitted = fit(
        log.tasks[is_fitted],
        clients=len(log.clients),
        latency=latency,
        protocol=_read_protocol(path, protocol),
        all_tasks=log.tasks,
    )
    world = fitted.world
    presence = estimate_presence(log)
    # without anything random, every seed gives the same prediction
    is_exact = log.synchronous and not world.jitter and not world.protocol.weighs
    draws = 1 if is_exact else _DRAWS
    prediction = predict(log, is_held_out, [world] * draws)
    lines = [*describe(fitted, log, presence)]
    lines += prediction.summary("with each client's own values")
    if not by_client:
        drawn_worlds = [draw_clients(world, seed) for seed in range(_DRAWS)]
        prediction_of_drawn = predict(log, is_held_out, drawn_worlds)
        lines += prediction_of_drawn.summary("with clients drawn as the scenario does")
    rivals = keep_unrefuted(log, is_held_out, world, fitted.rivals)
    lines += [outlook.line for outlook in predict_outlooks(log, world, rivals)]
    write_files(out, path.name, log, fitted, by_client, presence, prediction)
    lines += [f"note: {note}" for note in log.notes]
    lines.append(f"written to {out}")
    return lines


def _read_protocol(path: Path, name: str | None) -> Protocol:
    """Return the protocol called ``name``; by default the run folder's, or fluid if it has none.

    User code that the run folder names is never imported.

    Raises:
        DataError: the run folder's protocol is user code.
    """
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
