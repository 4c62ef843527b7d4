"""The ServerApp of an exported app."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr import __version__ as package_version
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsim.clock.simulation import Record
from fedsim.common.errors import RunFolderError, SimulationError, show_value
from fedsim.deployed.client import SLEPT, pace_of
from fedsim.deployed.clock import WallClock
from fedsim.deployed.measured import DeploymentEnd, with_steps, write_run_folder
from fedsim.deployed.nodes import Nodes
from fedsim.deployed.run import ServerRun
from fedsim.deployed.step_log import log_folder, logged_steps, note_begin
from fedsim.deployed.waits import longest_wait_s, shorten_waits
from fedsim.deployed.wire import FILE as WIRE
from fedsim.deployed.wire import WireCounters
from fedsim.records import folder as files
from fedsim.running.model_files import Models, best_models, last_models
from fedsim.running.runner import FAILED
from fedsim.running.scenario import Scenario, load

EVENTS = "events.jsonl"
"""File with all records, including measured times (s) and bytes, one JSON object per line."""
_log = logging.getLogger("flwr")
_LOOK_S = 0.02  # real time between two looks for messages (s)


def server_app(scenario: Path) -> ServerApp:
    """Return the Flower ServerApp that runs a scenario's server code in real time.

    Args:
        scenario: the app's scenario file.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        shorten_waits()
        config = context.run_config
        out = Path(str(config["out"]))
        slept = str(config.get("slept", SLEPT[0]))
        least = _number_in(config, "min-nodes")
        patience_s = _number_in(config, "patience")
        loaded = load(scenario, allow_code=True)
        deployment = Deployment(loaded, grid, pace_of(config["pace"]), slept)
        deployment.execute(out, int(least), patience_s)

    app.main()(main)
    return app


def _number_in(config: Mapping[str, object], key: str) -> float:
    """Return a value of the run configuration that must be a number of at least 0.

    Raises:
        SimulationError: the value is no such number.
    """
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0.0:
        raise SimulationError(
            f"the run configuration has {key} = {show_value(value)}; allowed are numbers from 0"
        )
    return float(value)


class Deployment:
    """Server's side of a deployment: it waits for nodes, runs the strategy, and writes the results.

    Args:
        scenario: the scenario of the app.
        grid: Flower's Grid.
        pace: real seconds per second of the scenario, if nodes sleep to imitate the scenario's
            times; 0 if nodes work as fast as they can, in real time.
        slept: ``slept`` of the run configuration: whether nodes imitate ``all`` times of the
            scenario by sleeping, or only the times of computations (``training``). It is only
            written into the summary.

    Attributes:
        run: the run of the strategy's server code.
        records: all records so far. Measured times and bytes are in records of the kinds ``sent``
            and ``received``.
    """

    def __init__(self, scenario: Scenario, grid: Grid, pace: float, slept: str = SLEPT[0]) -> None:
        self._started = time.perf_counter()
        self._mark: dict[str, object] = {
            "flwr": package_version,
            "pace": pace,
            "slept": slept if pace else "nothing",
            "longest_wait_s": longest_wait_s(),
        }
        self._scenario = scenario
        self.records: list[Record] = []
        self._clock = WallClock(pace or 1.0, self._look, _LOOK_S)
        self._clock.listen(self.records.append)
        self.run = ServerRun(scenario, self._clock)
        # no device has arrived before its node connects
        self.run.population.arrival = np.full(scenario.population.devices, np.inf)
        self._nodes = Nodes(grid, self.run, self._clock)

    def _look(self) -> None:
        self._nodes.look()

    def execute(self, out: Path, least_nodes: int, patience_s: float) -> None:
        """Wait for nodes, run the strategy to its end, and write the results.

        Args:
            out: folder of the results.
            least_nodes: count of nodes for which the run waits; 0 for all devices.
            patience_s: real time for which the run waits for nodes (s).

        Raises:
            RunFolderError: ``out`` has a run already.
            SimulationError: too few nodes have connected.
        """
        if any((out / name).exists() for name in (files.SUMMARY, EVENTS)):
            raise RunFolderError(
                f"out = {str(out)!r} of the run configuration has a run already; give another "
                "folder: flwr run APP --run-config 'out=\"FOLDER\"'"
            )
        self._wait_for_nodes(least_nodes or self._scenario.population.devices, patience_s)
        self._begin()
        files.make(out)
        # the file is buffered by line, so that it has only whole lines if the process is killed
        with (out / EVENTS).open("w", buffering=1) as file:

            def write(record: Record) -> None:
                file.write(_line(record))

            self._clock.listen(write)
            for record in self.records:  # records of the nodes that have connected so far
                write(record)
            status = FAILED
            stopped = "an error ended it"
            try:
                stopped = asyncio.run(self._clock.run())
                status = "done"
            finally:  # results before an error are written too
                self._nodes.end()
                file.close()
                self._write(out, status, stopped)

    def _begin(self) -> None:
        """Start the clock, and register the first event and the calls at the end of the run."""
        run = self.run
        clock = self._clock
        clock.begin()
        note_begin(log_folder(), clock.began)
        self._mark |= {"began": clock.began, "nodes": self._nodes.connected}
        self._nodes.clock_runs = True
        end_s = run.scenario.stop.simulated_time
        if end_s is not None:
            run.stop_at(0, end_s)
        clock.at_end(lambda: run.remote.end_all("stopped"))
        clock.at_close(run.strategy.on_end)
        clock.listen(_log_round, kinds=("round",))
        clock.post(run.dispatch.start)

    def _wait_for_nodes(self, least: int, patience_s: float) -> None:
        """Wait until ``least`` nodes are connected.

        Raises:
            SimulationError: fewer nodes are connected after ``patience_s`` seconds.
        """
        deadline = time.monotonic() + patience_s
        while self._nodes.connected < least:
            self._nodes.look()
            if time.monotonic() > deadline:
                raise SimulationError(
                    f"{self._nodes.connected} of {least} nodes have connected within "
                    f"{patience_s:g} s; start more SuperNodes, or set min-nodes"
                    f"{self._nodes.refused}"
                )
            time.sleep(_LOOK_S)

    def _models(self, status: str) -> tuple[Models, Models]:
        """Return the last models, and the models of the best test: file name -> tensors by name.

        Both are empty if the run has failed and the models cannot be computed.

        Args:
            status: status of the run, such as ``done``.
        """
        try:
            return asyncio.run(last_models(self.run)), asyncio.run(best_models(self.run))
        except Exception as error:
            if status != FAILED:
                raise
            _log.warning("the models are not written: %s", error)
            return {}, {}

    def _write(self, out: Path, status: str, stopped: str) -> None:
        """Write the run folder, with the steps that devices have reported or logged."""
        models, best = self._models(status)
        folder = log_folder()  # folder of the devices' logs; None if they are not on this machine
        wire: WireCounters | None = None  # byte counters of the links
        if folder is not None and (folder / WIRE).is_file():
            wire = WireCounters(folder / WIRE, self._clock.began)
        records = with_steps(self.records, logged_steps(folder), wire)
        records.append(Record(self._clock.now, "run-end", {"reason": stopped}))
        wall_s = time.perf_counter() - self._started
        write_run_folder(
            out,
            self._scenario,
            self.run,
            records,
            DeploymentEnd(status, stopped, wall_s),
            models,
            best,
            self._mark,
        )
        _log.info("written to %s", out.resolve())


def _line(record: Record) -> str:
    fields = {"time": record.time, "kind": record.kind, **record.fields}
    return json.dumps(fields, default=str) + "\n"


def _log_round(record: Record) -> None:
    fields = record.fields
    accuracy = fields.get("accuracy")
    text = "not measured" if accuracy is None else f"{accuracy:.4f}"
    _log.info("round %s at %.2f s: accuracy %s", fields["round"], record.time, text)
