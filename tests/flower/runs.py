"""Runs of Flower apps, as the tests need them."""

import asyncio
from pathlib import Path
from typing import Any

import fedsim
from fedsim.executors import Executor, Inline
from fedsim.running.runner import EndedRun, Job
from tests.flower.plain import APPS

STAR = {"kind": "star", "server": {"down": "20 Mbit/s", "up": "10 Mbit/s"}}
LINKS = {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"}
CHURN = {"kind": "renewal", "mean_on": "30 s", "mean_off": "10 s"}


def scenario(app: str, devices: int = 6, population: dict[str, Any] | None = None, **strategy: Any) -> dict[str, Any]:
    """Sections of a scenario: equal devices that are always there, on links without limit."""
    place = app if "/" in app else str(APPS / app)
    return {
        "population": {"devices": devices, "speed": "20 samples/s"} | (population or {}),
        "network": {"kind": "star"},
        "strategy": {"kind": "flower", "app": place} | strategy,
        "stop": {"rounds": 100, "simulated_time": "1 day"},
    }


def eventful(app: str, devices: int = 20, **strategy: Any) -> dict[str, Any]:
    """The same with stragglers, jitter, links and devices that come and go."""
    sections = scenario(app, devices, **strategy)
    sections["population"] |= {"speed": {"kind": "lognormal", "median": "5 samples/s", "spread": 3.0}, "jitter": 0.2}
    sections["population"] |= {"availability": CHURN}
    return sections | {"network": STAR | {"device": LINKS}}


def execute(sections: dict[str, Any], folder: Path | None = None, executor: Executor | None = None) -> EndedRun:
    """Run it."""
    return asyncio.run(Job(fedsim.Scenario(**sections), folder, executor or Inline()).execute())
