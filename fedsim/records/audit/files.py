"""Are the files those that the run wrote?"""

import json
from collections.abc import Iterator

from fedsim.records import folder as names
from fedsim.records.digest import EventChain, models_digest
from fedsim.records.reading import RunFolder
from fedsim.records.schema import EVENT_COLUMNS


def sealed(run: RunFolder) -> Iterator[str]:
    """Each file has the sha256 that the summary states, none is missing and none was added."""
    stated, found = run.summary["files_sha256"], names.fingerprints(run.path)
    for name in sorted(stated.keys() | found.keys()):
        if name not in found:
            yield f"{name} is missing"
        elif name not in stated:
            yield f"{name} was added after the run"
        elif stated[name] != found[name]:
            yield f"{name} was changed after the run"


def records_intact(run: RunFolder) -> Iterator[str]:
    """Chain and count of the records are the summary's; the last one's time is the simulated time."""
    chain = EventChain()
    table = run.table(names.EVENTS)
    columns = [table[name].to_pylist() for name in ("time", *EVENT_COLUMNS, "data")]
    chain.extend(zip(*columns, strict=True))
    if chain.count != run.summary["events"]:
        yield f"there are {chain.count} records, the summary says {run.summary['events']}"
    if chain.hexdigest() != run.summary["events_sha256"]:
        yield "the records' chain is not the summary's events_sha256"
    if columns[0] and columns[0][-1] != run.summary["simulated_s"]:
        yield f"the last record is at {columns[0][-1]!r} s, the summary says {run.summary['simulated_s']!r} s"


def models_intact(run: RunFolder) -> Iterator[str]:
    """The models' fingerprint is the summary's."""
    if models_digest(run.models()) != run.summary["models_sha256"]:
        yield "the models' fingerprint is not the summary's models_sha256"


def scenario_agrees(run: RunFolder) -> Iterator[str]:
    """Seed, name and strategy are the summary's, and the summary is valid JSON of the right kind."""
    scenario, summary = run.scenario, run.summary
    pairs = {
        "seed": scenario["seed"],
        "name": scenario["name"],
        "strategy": scenario["strategy"]["kind"],
    }
    for key, value in pairs.items():
        if summary[key] != value:
            yield f"{key} is {json.dumps(value)} in the scenario and {json.dumps(summary[key])} in the summary"
