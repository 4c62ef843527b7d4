"""Executors by name, as ``--executor`` gives it."""

import os

from fedsim.errors import ScenarioError, nearest
from fedsim.executors.base import Executor
from fedsim.executors.inline import Inline
from fedsim.executors.threads import Threads
from fedsim.language.imports import at

EXECUTORS = {
    "inline": "all work in one thread",
    "threads": "a thread a core of this machine",
    "ray": "processes on this machine, or on all machines of a Ray cluster (needs the extra ray)",
}


def make_executor(name: str, workers: int | None = None, address: str | None = None, device: str = "cpu") -> Executor:
    """An executor by name, with so many threads or processes (by default one a core), for arithmetic on a device.

    ``address`` is that of a Ray cluster that is there, with workers of its own: ``HOST:PORT``, or ``auto``. Raises
    ``ScenarioError`` where there is no such executor or cluster, or it cannot do what is asked.
    """
    if workers is not None and workers < 1:
        raise ScenarioError(f"--workers is {workers}; allowed is 1 or more")
    if address is not None and name in EXECUTORS and name != "ray":
        raise ScenarioError(f"--address is {address!r}, but --executor is {name!r}; only 'ray' has an address")
    if name == "inline":
        return Inline()
    if name == "threads":
        return Threads(workers or os.cpu_count() or 1)
    if name == "ray":
        if address is not None and workers is not None:
            raise ScenarioError(f"--workers is {workers}, but the cluster at --address {address!r} has its own number of them")
        if device != "cpu":
            raise ScenarioError(f"training.device is {device!r}, but --executor is 'ray', whose workers use CPUs alone")
        made: Executor = at("fedsim.toolbox.executors.ray:Ray", "--executor")(address, workers)
        return made
    raise ScenarioError(f"--executor is {name!r}; allowed are {', '.join(EXECUTORS)}{nearest(name, EXECUTORS)}")
