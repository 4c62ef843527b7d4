"""Real rounds and simulated ones side by side: each world of the testbed told to fedsim, run,
and compared with its log.

    python scenarios/validation/compare.py [--out runs/validation]

Needs no root: it reads the logs that are kept in ``logs``. Links and latencies are those that the
testbed was told, and each client trains as long as it did on the median; nothing else is fitted.
Writes a scenario and a run folder a world, the tables ``errors.md`` and ``predicted.csv`` and the
picture ``simulated-against-real.png`` to ``--out``.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pyarrow.parquet as pq
import tomli_w
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator
from numpy.typing import NDArray

import fedsim
from fedsim.analysis.palette import GREY, PALE, SERIES
from fedsim.analysis.style import save, styled
from fedsim.common.harmless import say
from fedsim.lab.calibrate.log import Log, LogDefaults, read_log
from fedsim.lab.calibrate.tasks import took
from fedsim.running.mistakes import explained

HERE = Path(__file__).resolve().parent
SEEDS = range(1, 6)  # of the unequal shares that transfers get
# of a protocol, what stands in its scenario; queues are those of the testbed's links, and senders
# pace: sockets of a machine whose default is BBR keep pacing when they are set to CUBIC
PROTOCOLS: dict[str, str | dict[str, Any]] = {
    "fluid": "fluid",
    "tcp": "tcp",
    "window": {"kind": "tcp", "model": "window", "queue": {"time": "60 ms"}, "pacing": True},
}
# of a protocol, and where in a world's row it is
LOOKS: dict[str, tuple[dict[str, Any], float]] = {
    "fluid": ({"marker": "x", "color": SERIES[1]}, -0.17),
    "tcp": ({"marker": "o", "color": SERIES[0]}, 0.0),
    "window": ({"marker": "s", "color": SERIES[2]}, 0.17),
}

Floats = NDArray[np.float64]


class Compared(NamedTuple):
    """One world, simulated by one protocol.

    Attributes:
        world, protocol: names.
        real, simulated: how long rounds take (s), [rounds]; of a buffered server how long a
            version takes, on the mean, [1].
        transfers: how long a client's downloads and uploads take on the mean, really and
            simulated (s), [2, clients] each.
        updates: whether the server is asynchronous.
    """

    world: str
    protocol: str
    real: Floats
    simulated: Floats
    transfers: tuple[Floats, Floats]
    updates: bool

    @property
    def errors(self) -> Floats:
        """Simulated over real, less 1; rounds in the order in which they were."""
        return self.simulated / self.real - 1


def trainings(world: dict[str, Any], log: Log | None) -> list[float]:
    """How long each client trains (s): on the median of a log, or as the world says without one."""
    clients = world["clients"]
    if log is None:
        return [client["train"] for client in clients]
    steps = took(log.tasks.train)
    return [float(np.median(steps[log.tasks.client == one])) for one in range(len(clients))]


def told(name: str, world: dict[str, Any], log: Log | None, protocol: str) -> dict[str, Any]:
    """The sections of the scenario that is this world."""
    clients = world["clients"]
    trained = trainings(world, log)
    samples = int(world.get("samples", 100))
    strategy = {"kind": "fedavg", "clients_per_round": len(clients)}
    if "buffer" in world:
        strategy = {"kind": "fedbuff", "concurrency": len(clients), "buffer": world["buffer"]}
    return {
        "name": f"{name}, as it was told to the testbed",
        "learning": "off",
        "model": {"kind": "size", "bytes": f"{world['bytes']} B"},
        "population": {
            "devices": len(clients),
            "speed": [f"{samples / took:.9g} samples/s" for took in trained],
            "samples": {"low": samples, "high": samples},
        },
        "network": {
            "kind": "star",
            "protocol": PROTOCOLS[protocol],
            "server": {way: f"{rate} Mbit/s" for way, rate in world.get("server", {}).items()},
            "device": {way: [f"{one[way]} Mbit/s" for one in clients] for way in ("down", "up")}
            | {"latency": [f"{one.get('latency', 0)} ms" for one in clients]},
        },
        "strategy": strategy | {"local_epochs": 1},
        "stop": {"rounds": world["rounds"]},
    }


def compared(name: str, world: dict[str, Any], out: Path) -> Iterator[Compared]:
    """One world by each protocol."""
    log = read_log(HERE / "logs" / f"{name}.csv", LogDefaults())
    for protocol in PROTOCOLS:
        path = out / f"{name}-{protocol}.toml"
        path.write_text(tomli_w.dumps(told(name, world, log, protocol)))
        runs = [
            fedsim.run(fedsim.load(path, seed=seed), out / "runs" / f"{path.stem}-{seed}")
            for seed in SEEDS
        ]
        ends = np.mean([run.rounds["time"] for run in runs], axis=0)
        folders = [run.folder for run in runs if run.folder is not None]
        if "buffer" in world:
            real, simulated = log.rounds.end[-1:] - log.rounds.start[0], ends[-1:]
            real, simulated = real / len(ends), simulated / len(ends)
        else:
            real, simulated = log.rounds.end - log.rounds.start, np.diff(ends, prepend=0.0)
        yield Compared(
            name,
            protocol,
            real,
            simulated,
            (_real(log), _simulated(folders, len(log.clients))),
            "buffer" in world,
        )


def _real(log: Log) -> Floats:
    own = [log.tasks.client == one for one in range(len(log.clients))]
    return np.array(
        [[np.mean(took(steps)[one]) for one in own] for steps in (log.tasks.down, log.tasks.up)]
    )


def _simulated(folders: list[Path], clients: int) -> Floats:
    frames = [pq.read_table(folder / "transfers.parquet").to_pandas() for folder in folders]
    took = np.zeros((2, clients))
    for place, way in enumerate(("down", "up")):
        for one in range(clients):
            rows = [
                frame[(frame.direction == way) & (frame.device == one) & (frame.outcome == "done")]
                for frame in frames
            ]
            took[place, one] = np.mean([(row.end - row.start).mean() for row in rows])
    return took


def table(found: list[Compared]) -> str:
    """All worlds, as Markdown."""
    runs = json.loads((HERE / "logs" / "index.json").read_text())
    lines = [
        "| world | protocol | real round (s) | simulated / real - 1 (%) | mean of absolute "
        "errors (%) | 95th percentile (%) "
        "| transfers, mean of absolute errors (%) | load of the machine |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for one in found:
        errors, (real, here) = 100 * one.errors, one.transfers
        figures = (
            errors.mean(),
            abs(errors).mean(),
            np.percentile(abs(errors), 95),
            100 * abs(here / real - 1).mean(),
        )
        what = f"{one.real.mean():.3f}{' a version' if one.updates else ''}"
        load = "{} to {}, {} cores".format(*runs[one.world]["load"], runs[one.world]["cores"])
        lines.append(
            f"| {one.world} | {one.protocol} | {what} | "
            f"{' | '.join(f'{of:.2f}' for of in figures)} | {load} |"
        )
    return "\n".join(lines) + "\n"


@styled
def draw(found: list[Compared]) -> Figure:
    """Simulated against real, a row a world: rounds at the left, single transfers at the right;
    grey is within 5 %.
    """
    rows = {one.world: f"{one.world}, {one.real.mean():.3g} s" for one in found}
    places = {name: place for place, name in enumerate(rows)}
    figure = Figure(figsize=(13, 1.6 + 0.55 * len(rows)))
    panels = figure.subplots(1, 2, sharey=True)
    for panel, title in zip(
        panels, ("rounds, and versions", "transfers, mean of a client's"), strict=True
    ):
        for one in found:
            real, here = (one.real, one.simulated) if title.startswith("rounds") else one.transfers
            errors = 100 * np.ravel(here / real - 1)
            look, offset = LOOKS[one.protocol]
            row = places[one.world] + offset
            panel.plot(
                errors, np.full(len(errors), row), linestyle="", markersize=6, alpha=0.6, **look
            )
            panel.plot(
                errors.mean(),
                row,
                marker="|",
                markersize=17,
                markeredgewidth=2,
                color=look["color"],
            )
        panel.axvspan(-5, 5, color=PALE, zorder=0)
        panel.axvline(0, color=GREY, linewidth=1)
        panel.set_xscale("symlog", linthresh=5, linscale=0.8)
        panel.margins(x=0.04)
        panel.xaxis.set_major_locator(FixedLocator([-80, -40, -20, -10, -5, 0, 5, 10, 20]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.set(title=title, xlabel="simulated / real - 1 (%), beyond 5 % by its logarithm")
    panels[0].set_yticks(range(len(rows)), list(rows.values()))
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    panels[0].set_ylabel("world, and its mean real round")
    handles = [
        Line2D([], [], linestyle="", label=name, **look) for name, (look, _) in LOOKS.items()
    ]
    handles.append(
        Line2D(
            [],
            [],
            linestyle="",
            marker="|",
            markersize=14,
            markeredgewidth=2,
            color=GREY,
            label="mean",
        )
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs/validation"), show_default=True
)
@explained("compare")
def main(out: Path) -> None:
    """Compare every world whose log is kept."""
    worlds = tomllib.loads((HERE / "worlds.toml").read_text())
    out.mkdir(parents=True, exist_ok=True)
    found = [
        one
        for name, world in worlds.items()
        if (HERE / "logs" / f"{name}.csv").exists()
        for one in compared(name, world, out)
    ]
    (out / "errors.md").write_text(table(found))
    rows = [
        f'"{"version" if one.updates else "round"}, '
        f's",{one.world},{real:.5g},{here:.5g},{here / real - 1:+.4f},no'
        for one in found
        if one.protocol == "tcp"
        for real, here in [(one.real.mean(), one.simulated.mean())]
    ]
    (out / "predicted.csv").write_text(
        "\n".join(["what,cell,measured,predicted,error,given", *rows, ""])
    )
    say(*table(found).splitlines())
    say(*save(draw(found), out / "simulated-against-real", ["png"]))


if __name__ == "__main__":
    main()
