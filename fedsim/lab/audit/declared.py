"""The parts of a run folder that no check covers, and the checks that a user's own code brings.

A part that a scenario names by import path may have a static method ``check_run(run, section)``,
which takes the run folder (``fedsim.plugin.RunFolder``) and the part's table in the scenario, and
yields a sentence for each problem. Parts without ``check_run`` are listed as unchecked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fedsim.common.errors import ScenarioError
from fedsim.common.imports import import_object
from fedsim.lab.audit.evidence import Evidence
from fedsim.records.reading import RunFolder

Section = Mapping[str, Any]
"""Table of a part in the scenario, as a dict from key to value."""


class OwnPart(NamedTuple):
    """User code that a scenario names by import path, such as a strategy or a meter.

    Attributes:
        key: dotted key in the scenario, such as ``strategy.kind``.
        path: the import path (``module:name``).
        section: the table of the scenario that has the path, with the part's options.
    """

    key: str
    path: str
    section: Section


_METERS = "meters."  # prefix of the keys of a user's meters, whose figures the audit recounts

_VALUES = "values of learning, which nothing else in the folder has"
_NO_TRACE = "changes values of learning alone, no time and no byte"
_DECIDES = "a decision by values of learning, or by what a server knew"
_UNUSED = "a bound that the run has not reached"
_OF_DATA = "which samples a device holds is not in the folder"
_OF_FILES = "how files of traces were read; the traces themselves are in the folder"
_OF_TRACES = ("file", "members", "time", "rate", "*_column", "every", "average", "deals")

UNCHECKED: Mapping[str, str] = {
    "summary: fedsim": "the version that wrote the folder",
    "summary: name": "a label",
    "summary: wall_s": "real time",
    "summary: estimates": "words",
    "summary: round_word": "words",
    "summary: packages": "packages need not be installed where a run is audited",
    "summary: accuracy.fine_tuned": _VALUES,
    "events.parquet: group": "of records that are of no task",
    "aggregate: group": "of records that are of no task",
    "aggregate: weights": "which updates robust aggregations choose, and weights that follow from values",
    "assign: why": "words",
    "battery: flat": "whether a device works is in its tasks",
    "round-start: selected": "where edge servers ask",
    "shift: device": _OF_DATA,
    "shift: partner": _OF_DATA,
    "step-end of evaluate: models": "its time is checked where the speed of tests is known",
    "step-end of train: asked": "of strategies that train otherwise than for local_epochs",
    "clustering: *": _DECIDES,
    "cluster: *": _DECIDES,
    "cluster-criteria: *": _DECIDES,
    "cluster-split: *": _DECIDES,
    "cosines: *": _VALUES,
    "latency-tiers: *": _DECIDES,
    "malicious: *": "who attacks changes values alone",
    "non-finite: *": _VALUES,
    "reported: *": _VALUES,
    "reweighting: *": _DECIDES,
    "shift-test: *": _DECIDES,
    "split: *": _DECIDES,
    "stage: *": _DECIDES,
    "tier*: *": _DECIDES,
    "rounds.parquet: loss": _VALUES,
    "devices.parquet: test_samples": "where the mean over devices does not weigh them",
    "scenario: name": "a label",
    "scenario: data.*": _OF_DATA,
    "scenario: model.lora.alpha": _NO_TRACE,
    "scenario: model.file": "first weights",
    "scenario: training.*": _NO_TRACE,
    "scenario: objective.*": _NO_TRACE,
    "scenario: malicious.*": _NO_TRACE,
    "scenario: evaluation.*": "when and how accuracy is measured",
    "scenario: checkpoint.*": "a saved run is the same run",
    "scenario: drift.*": "which devices shift, and when",
    "scenario: server.*": "how long a server computes, and waits for disconnected clients",
    "scenario: stop.*": _UNUSED,
    "scenario: messages.*.error_feedback": _NO_TRACE,
    "scenario: messages.*.encodes": _NO_TRACE,
    "scenario: messages.*.encode_rate": "it is checked that steps follow each other, not how long encoding takes",
    "scenario: network.server.*": "links that were never full, and where the protocol is not fluid",
    "scenario: network.cell.*": "links that were never full, and where the protocol is not fluid",
    "scenario: network.protocol.*": "how a connection starts, and how it shares a link",
    "scenario: network.device.latency.*": "where edge servers or regions add to it",
    "scenario: network.edge.*": "links that were never full",
    **{f"scenario: network.*.{key}": _OF_FILES for key in _OF_TRACES},
    "scenario: energy.battery.charging.*": "when a device was plugged in; its charge is in its books alone",
    "scenario: energy.battery.restart": "when a device works again is in its tasks",
    "scenario: energy.carbon.zones.*.share": "how devices are dealt over zones; each is in energy.parquet",
    "scenario: population.local.*": "rates and batch sizes change values; files are not in the folder",
    "scenario: population.availability.*": "other phases than those of kind renewal, and with lifetimes or batteries",
    "scenario: strategy.clients_per_round": "more clients than were there",
    "scenario: strategy.over_selection": "more clients than were there",
    "scenario: strategy.concurrency": "more clients than were there",
    "scenario: strategy.participation": "more clients than were there",
    "scenario: strategy.kappa2": "edge rounds may end early",
    "scenario: strategy.retry": "how long a server waits for clients",
    "scenario: strategy.every": "how long a server waits between rounds",
    "scenario: strategy.local_epochs": "of strategies that train otherwise than for local_epochs",
    "scenario: strategy.deadline.*": "rules that follow from the tasks before",
    "scenario: strategy.selection.*": "whom a round asks",
    "scenario: strategy.server.*": _NO_TRACE,
    "scenario: strategy.moment.*": _DECIDES,
    "scenario: strategy.clusterer.*": _DECIDES,
    "scenario: strategy.aggregation.clip": _NO_TRACE,
    "scenario: strategy.aggregation.divide_by": _NO_TRACE,
    "scenario: strategy.aggregation.adaptive.*": _NO_TRACE,
    "scenario: strategy.aggregation.share": _NO_TRACE,
    "scenario: strategy.secure_aggregation.threshold": "whether a sum could be read is in its weights",
    "scenario: strategy.secure_aggregation.mask_rate": "how long a server computes",
    "scenario: strategy.secure_aggregation.patience": _UNUSED,
    "scenario: strategy.mu": _NO_TRACE,
    "scenario: strategy.lam": _NO_TRACE,
    "scenario: strategy.rho": _NO_TRACE,
    "scenario: strategy.eta*": _NO_TRACE,
    "scenario: strategy.outer_*": _NO_TRACE,
    "scenario: strategy.mixing": _NO_TRACE,
    "scenario: strategy.start": _NO_TRACE,
}
"""Dict from patterns of columns, fields, entries or keys that no check covers to the reason.

A column of a table is ``FILE: COLUMN``, a field of a record ``KIND: FIELD``, an entry of the
summary ``summary: ENTRY``, a key of the scenario ``scenario: KEY``.
"""

PARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "strategy": {
        "messages, weights, limits and models": (
            "ca2fl",
            "cata-fed",
            "cfl",
            "ditto",
            "fedasync",
            "fedat",
            "fedavg",
            "fedbn",
            "fedbuff",
            "fedcompass",
            "feddr",
            "feddyn",
            "fedgroup",
            "fednova",
            "fedper",
            "fedprox",
            "fedrep",
            "fesem",
            "fesem-mig",
            "fl-hc",
            "flexcfl",
            "flora",
            "fpfc",
            "heterofl",
            "hierfavg",
            "hypcluster",
            "ifca",
            "ifca-mig",
            "lcfl",
            "local",
            "mifa",
            "moon",
            "pacfl",
            "pfedme",
            "scaffold",
            "tifl",
        ),
        "messages and their receivers, limits and models": (
            "d-psgd",
            "diloco",
            "epidemic",
            "gossip",
            "local-sgd",
        ),
        "messages, limits and models; weights follow from values": (
            "hetlora",
            "q-fedavg",
            "refl",
            "rfedavg",
        ),
        "limits alone; its messages and weights are the app's": ("flower",),
    },
    "aggregation": {
        "weights": ("first", "mean", "median", "private", "trimmed-mean", "weighted"),
        "how many updates weigh something": ("bulyan", "krum", "multi-krum"),
    },
    "codec": {
        "bytes": ("bfloat16", "float16", "int8", "plain", "qsgd", "random-k", "sign", "top-k")
    },
    "process of the world": {
        "times": ("edge-outage", "link-outage"),
        "slots": ("upload-slots",),
        "devices and factors": ("heat",),
    },
    "deadline": {
        "time": ("fixed",),
        "that rounds keep to what is recorded": ("quantile", "relative"),
    },
    "selection": {
        "numbers of clients": (
            "favor",
            "fedcs",
            "flanp",
            "least-asked",
            "least-available",
            "oort",
            "power-of-choice",
            "random",
        )
    },
    "server optimiser": {"nothing: it moves models alone": ("adagrad", "adam", "sgd", "yogi")},
    "attack": {
        "nothing: it changes values alone": ("gaussian", "label-flip", "scaled", "sign-flip")
    },
}
"""Dict from family of parts to a dict from what the audit checks to the kinds of parts.

For example, the audit checks the bytes of the kinds in ``PARTS["codec"]["bytes"]``. Every new kind
needs an entry.
"""


def is_unchecked(name: str) -> bool:
    """Whether no check of the audit covers a column, field or key of a run folder.

    ``UNCHECKED`` lists their names.

    Args:
        name: file and name, such as ``rounds.parquet: loss`` or ``scenario: stop.rounds``.
    """
    return any(fnmatchcase(name, pattern) for pattern in UNCHECKED)


def own_parts(scenario: Section) -> list[OwnPart]:
    """Return all parts (strategies, meters and so on) that a scenario names by import path."""
    return [*_find_own_parts(scenario, "")]


def _find_own_parts(section: object, key: str) -> Iterator[OwnPart]:
    """Yield the parts that a section of the scenario names by import path, at any depth.

    Args:
        section: a table, a list or a value of the scenario.
        key: dotted key of the section, with a dot at its end; empty for the whole scenario.
    """
    if isinstance(section, list):
        for number, entry in enumerate(section):
            yield from _find_own_parts(entry, f"{key}{number}.")
    elif isinstance(section, Mapping):
        for name in ("kind", "factory"):
            path = section.get(name)
            if isinstance(path, str) and ":" in path:
                yield OwnPart(f"{key}{name}", path, section)
        for name, entry in section.items():
            yield from _find_own_parts(entry, f"{key}{name}.")


def check_own_parts(evidence: Evidence) -> Iterator[str]:
    """Yield the problems that the user's own parts find in the run folder by their ``check_run``.

    ``check_run`` is an optional static method of a part that a scenario names by import path. Parts
    whose code may not be imported are skipped; an error in user code becomes a problem, too.
    """
    for part in own_parts(evidence.run.scenario):
        check = _find_check(part)
        if check is None:
            continue
        try:
            problems = [*check(evidence.run, part.section)]
        except Exception as error:  # user code may raise anything
            problems = [f"its check failed ({type(error).__name__}: {error})"]
        for problem in problems:
            yield f"{part.key} = {part.path!r}: {problem}"


def _find_check(part: OwnPart) -> Callable[[RunFolder, Section], Iterable[str]] | None:
    """Return the ``check_run`` of a user's part; None if it has none or cannot be imported."""
    try:
        code = import_object(part.path, part.key)
    except ScenarioError:
        return None  # the part's code may not be imported, or cannot be found
    check: Callable[[RunFolder, Section], Iterable[str]] | None = getattr(code, "check_run", None)
    return check


def unchecked_parts(run: RunFolder) -> tuple[list[str], bool]:
    """List the parts that a scenario names by import path and that no check of the audit covers.

    A part is unchecked if it has no ``check_run``, or if its code may not or cannot be imported.
    Meters need no ``check_run``, because their figures are recounted.

    Args:
        run: the run folder.

    Returns:
        A sentence for each unchecked part, and whether the code of all parts can be imported.
    """
    sentences: list[str] = []
    can_import_all = True
    for part in own_parts(run.scenario):
        try:
            code = import_object(part.path, part.key)
        except ScenarioError:
            can_import_all = False
            sentences.append(f"{part.key} = {part.path!r}: its code is not allowed, or not here")
            continue
        if not part.key.startswith(_METERS) and getattr(code, "check_run", None) is None:
            sentences.append(f"{part.key} = {part.path!r}: it has no check_run")
    return sentences, can_import_all
