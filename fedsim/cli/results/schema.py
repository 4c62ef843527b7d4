"""The JSON schema of all that ``--json`` prints."""

from pydantic.json_schema import JsonSchemaValue, models_json_schema

from fedsim.cli.results.audit import AuditResult
from fedsim.cli.results.bench import BenchResult
from fedsim.cli.results.catalogue import DescribeResult, ListResult
from fedsim.cli.results.check import CheckResult
from fedsim.cli.results.compare import CompareResult, WhatifResult
from fedsim.cli.results.error import ErrorResult
from fedsim.cli.results.fetch import FetchResult
from fedsim.cli.results.figures import FiguresResult
from fedsim.cli.results.parts import VerbResult
from fedsim.cli.results.run import RunResult
from fedsim.cli.results.study import MergeResult, StudyResult
from fedsim.cli.results.why import WhyResult

RESULTS: tuple[type[VerbResult], ...] = (
    RunResult,
    CheckResult,
    CompareResult,
    AuditResult,
    WhyResult,
    WhatifResult,
    ListResult,
    DescribeResult,
    StudyResult,
    MergeResult,
    BenchResult,
    FiguresResult,
    FetchResult,
    ErrorResult,
)


def output_schema() -> JsonSchemaValue:
    """Return the JSON schema of all that ``--json`` prints; ``$defs`` has one schema per result."""
    _, definitions = models_json_schema([(result, "serialization") for result in RESULTS])
    references = [{"$ref": f"#/$defs/{result.__name__}"} for result in RESULTS]
    draft = "https://json-schema.org/draft/2020-12/schema"
    title = "Output of fedsim --json"
    return {"$schema": draft, "title": title, "anyOf": references, **definitions}
