"""Are the files those that the run wrote?"""

import json
from collections.abc import Iterator

from fedsim.audit.evidence import Evidence
from fedsim.records import folder as names
from fedsim.records.digest import EventChain, models_digest
from fedsim.records.reading import as_list
from fedsim.records.schema import EVENTS

_STATUSES = ("done", "interrupted", "failed")


def sealed(evidence: Evidence) -> Iterator[str]:
    """Each file has the sha256 that the summary states, none is missing and none was added; the summary is as written."""
    yield from names.changes(evidence.run.path)


def records_intact(evidence: Evidence) -> Iterator[str]:
    """Chain and count of the records are the summary's; the last one's time is the simulated time; each has readable data."""
    summary, times = evidence.run.summary, evidence.events["time"].tolist()
    if len(times) != summary["events"]:
        yield f"there are {len(times)} records, the summary says {summary['events']}"
    chain = EventChain()
    for table in evidence.run.batches(names.EVENTS, EVENTS):
        chain.extend(zip(*map(as_list, table.columns), strict=True))
    if chain.hexdigest() != summary["events_sha256"]:
        yield "the records' chain is not the summary's events_sha256"
    if len(times) and times[-1] != summary["simulated_s"]:
        yield f"the last record is at {times[-1]!r} s, the summary says {summary['simulated_s']!r} s"
    evidence.parse_others()


def ended_so(evidence: Evidence) -> Iterator[str]:
    """Status and reason are those that the record of the run's end tells."""
    status, stopped = evidence.run.summary["status"], evidence.run.summary["stopped"]
    if status not in _STATUSES:
        yield f"status is {json.dumps(status)} in the summary; there are only {', '.join(_STATUSES)}"
    for reason in evidence.said("run-end")["reason"]:
        if stopped != reason:
            yield f"stopped is {json.dumps(stopped)} in the summary and {json.dumps(reason)} in the records"
        if status != "failed" and (status == "interrupted") != (reason == "interrupted"):
            yield f"status is {json.dumps(status)} in the summary, but the run stopped as {json.dumps(reason)} in the records"


def models_intact(evidence: Evidence) -> Iterator[str]:
    """The models' fingerprint is the summary's."""
    if models_digest(evidence.run.models()) != evidence.run.summary["models_sha256"]:
        yield "the models' fingerprint is not the summary's models_sha256"


def scenario_agrees(evidence: Evidence) -> Iterator[str]:
    """Seed, name and strategy are the summary's, and the summary is valid JSON of the right kind."""
    scenario, summary = evidence.run.scenario, evidence.run.summary
    pairs = {
        "seed": scenario["seed"],
        "name": scenario["name"],
        "strategy": scenario["strategy"]["kind"],
    }
    for key, value in pairs.items():
        if summary[key] != value:
            yield f"{key} is {json.dumps(value)} in the scenario and {json.dumps(summary[key])} in the summary"
