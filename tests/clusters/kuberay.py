"""Check of the manifest in ``docs/howto`` against KubeRay's published schema, by hand.

``python -m tests.clusters.kuberay CRD`` takes ``ray.io_rayjobs.yaml`` of a release of KubeRay, from
``helm-chart/kuberay-operator/crds`` of its repository. A key that the schema does not have is an
error, since Kubernetes would drop it.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

MANIFEST = Path(__file__).parents[2] / "docs/howto/rayjob.yaml"


def schema_of(crd: Path, version: str) -> dict[str, Any]:
    """The schema of one version of a custom resource."""
    versions = yaml.safe_load(crd.read_text())["spec"]["versions"]
    schemas = {entry["name"]: entry["schema"]["openAPIV3Schema"] for entry in versions}
    schema: dict[str, Any] = schemas[version]
    return schema


def closed(schema: Any) -> Any:
    """The same schema, in which an object with named properties has no others."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: closed(part) for name, part in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields", False)
    names = schema.get("properties", {})
    is_object = schema.get("type") == "object" and isinstance(names, dict) and names
    # the API server completes the metadata of a whole resource
    is_resource = {"apiVersion", "kind", "metadata"} <= set(names)
    if is_object and not is_open and not is_resource:
        changed.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        changed.pop("type", None)
    return changed


def complaints(manifest: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """What the schema says against a manifest."""
    validator = jsonschema.Draft202012Validator(closed(schema))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


if __name__ == "__main__":
    document = yaml.safe_load(MANIFEST.read_text())
    schema = schema_of(Path(sys.argv[1]), document["apiVersion"].rpartition("/")[2])
    wrong = {**document, "spec": {**document["spec"], "entrypiont": "fedsim"}}
    if not complaints(wrong, schema):
        sys.exit("the check would not find a misspelt key")
    found = complaints(document, schema)
    print(*found or [f"{MANIFEST.name} fits {document['apiVersion']} {document['kind']}"], sep="\n")
    sys.exit(bool(found))
