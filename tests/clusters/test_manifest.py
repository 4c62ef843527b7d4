"""The manifest of the page on KubeRay: what it calls exists, and its parts fit together.

``python -m tests.clusters.kuberay CRD`` checks it against the published schema.
"""

import shlex
from typing import Any

import click
import pytest

from fedsim.cli import main
from fedsim.clock.placement import TaskResources

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which Optuna brings")
from tests.clusters import kuberay  # noqa: E402


@pytest.fixture
def manifest() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(kuberay.MANIFEST.read_text())
    return document


def test_its_command_is_one_of_fedsim_and_a_worker_has_room_for_a_run(
    manifest: dict[str, Any],
) -> None:
    program, verb, *words = shlex.split(manifest["spec"]["entrypoint"])
    assert program == "fedsim"
    command = main.commands[verb]
    with command.make_context(verb, words, parent=click.Context(main)) as context:
        settings = context.params
    assert (settings["executor"], settings["address"]) == ("ray", "auto")
    cluster = manifest["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    node = {"CPU": float(limits["cpu"]), "memory": int(limits["memory"].removesuffix("Gi")) * 2**30}
    assert TaskResources.read(settings["resources"]).count_on(node) >= 1
    assert settings["out"].parent.as_posix() == "/work"
    templates = [cluster["headGroupSpec"]["template"], group["template"]]
    images = {part["spec"]["containers"][0]["image"] for part in templates}
    assert len(images) == 1


def test_the_check_against_a_schema_finds_unknown_keys_and_wrong_types() -> None:

    spec = {"type": "object", "properties": {"replicas": {"type": "integer"}}}
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    cpu = {"x-kubernetes-int-or-string": True, "type": "integer"}
    schema = {"type": "object", "properties": {"spec": spec, "labels": free, "cpu": cpu}}
    fine = {"spec": {"replicas": 1}, "labels": {"any": "text"}, "cpu": "1"}
    assert kuberay.complaints(fine, schema) == []
    assert "replica" in kuberay.complaints({"spec": {"replica": 1}}, schema)[0]
    assert "'1'" in kuberay.complaints({"spec": {"replicas": "1"}}, schema)[0]
