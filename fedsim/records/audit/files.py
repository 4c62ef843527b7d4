"""Are the files those that the run wrote?"""

import json
from collections.abc import Iterator

from fedsim.records import folder as names
from fedsim.records.audit.chain import chain_of
from fedsim.records.audit.evidence import Evidence
from fedsim.records.digest import models_digest


def sealed(evidence: Evidence) -> Iterator[str]:
    """Each file has the sha256 that the summary states, none is missing and none was added."""
    stated, found = evidence.summary["files_sha256"], names.fingerprints(evidence.run.path)
    for name in sorted(stated.keys() | found.keys()):
        if name not in found:
            yield f"{name} is missing"
        elif name not in stated:
            yield f"{name} was added after the run"
        elif stated[name] != found[name]:
            yield f"{name} was changed after the run"


def records_intact(evidence: Evidence) -> Iterator[str]:
    """Chain and count of the records are the summary's; the last one's time is the simulated time."""
    summary, times = evidence.summary, evidence.events["time"]
    if len(times) != summary["events"]:
        yield f"there are {len(times)} records, the summary says {summary['events']}"
    if chain_of(evidence.run, names.EVENTS) != summary["events_sha256"]:
        yield "the records' chain is not the summary's events_sha256"
    if len(times) and times[-1] != summary["simulated_s"]:
        yield f"the last record is at {times.item(-1)!r} s, the summary says {summary['simulated_s']!r} s"


def models_intact(evidence: Evidence) -> Iterator[str]:
    """The models' fingerprint is the summary's."""
    if models_digest(evidence.run.models()) != evidence.summary["models_sha256"]:
        yield "the models' fingerprint is not the summary's models_sha256"


def scenario_agrees(evidence: Evidence) -> Iterator[str]:
    """Seed, name and strategy are the summary's, and the summary is valid JSON of the right kind."""
    scenario, summary = evidence.scenario, evidence.summary
    pairs = {
        "seed": scenario["seed"],
        "name": scenario["name"],
        "strategy": scenario["strategy"]["kind"],
    }
    for key, value in pairs.items():
        if summary[key] != value:
            yield f"{key} is {json.dumps(value)} in the scenario and {json.dumps(summary[key])} in the summary"
