"""Resources of tasks on Ray: how they are read, refused, and counted on nodes."""

import json
from typing import Any

import pytest

from fedsim.clock.executors import make_executor
from fedsim.clock.placement import TaskResources
from fedsim.common.errors import ScenarioError

GIB = 1 << 30


def test_a_table_or_its_text_has_units_and_a_default_of_one_core() -> None:
    table = {"num_cpus": 2, "num_gpus": 0.25, "memory": "2 GB", "named": {"fast_disk": 1}}
    resources = TaskResources.read(json.dumps(table))
    assert resources == TaskResources(2.0, 0.25, 2_000_000_000, {"fast_disk": 1.0})
    assert TaskResources.read(table) == resources
    assert TaskResources.read(None) == TaskResources.read("{}") == TaskResources(1.0)
    assert TaskResources.read({"memory": "1 GiB"}).memory == GIB


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("2 GPUs", "--resources is '2 GPUs', which is not JSON"),
        ("[1]", "must be a table, such as"),
        ('{"num_gpu": 1}', "unknown key 'num_gpu'.*did you mean 'num_gpus'"),
        ('{"memroy": "2 GB"}', "did you mean 'memory'"),
        ('{"memory": 2}', "memory is 2; it is text with a unit, such as '2 GB'"),
        ('{"memory": "2 Gigs"}', "memory is '2 Gigs'"),
        ('{"num_cpus": "1"}', "num_cpus is '1'; allowed is a number from 0"),
        ('{"num_cpus": true}', "num_cpus is True"),
        ('{"num_cpus": -1}', "num_cpus is -1"),
        ('{"num_cpus": NaN}', "num_cpus is nan"),
        ('{"num_gpus": 1.5}', "above 1, Ray takes whole numbers only"),
        ('{"num_gpus": 1e-9}', "Ray counts no less than 0.0001"),
        ('{"num_cpus": 0}', "asks for nothing"),
        ('{"named": ["a"]}', "must be a table of amounts"),
        ('{"named": {"GPU": 1}}', "'GPU', which has a key of its own"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_mistakes_are_refused_by_name(declared: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        TaskResources.read(declared)


@pytest.mark.parametrize(
    ("declared", "node", "count"),
    [
        ({}, {"CPU": 4.0, "memory": 8.0 * GIB}, 4),
        ({"num_cpus": 3}, {"CPU": 4.0}, 1),
        ({"num_cpus": 0.1}, {"CPU": 0.3}, 3),  # in floats 0.3 / 0.1 is below 3
        ({"num_gpus": 0.25}, {"CPU": 16.0, "GPU": 2.0}, 8),
        ({"num_gpus": 0.25}, {"CPU": 16.0}, 0),
        ({"num_cpus": 0, "memory": "3 GiB"}, {"CPU": 16.0, "memory": 8.0 * GIB}, 2),
        ({"named": {"disk": 2}}, {"CPU": 16.0, "disk": 5.0}, 2),
    ],
)
def test_a_node_has_room_for_as_many_as_its_scarcest_resource_allows(
    declared: dict[str, Any], node: dict[str, float], count: int
) -> None:
    assert TaskResources.read(declared).count_on(node) == count


def test_what_no_single_node_has_is_refused() -> None:
    nodes = [{"CPU": 4.0, "memory": 1e9}, {"CPU": 1.0, "GPU": 1.0, "memory": 8e9}]
    TaskResources.read({"num_gpus": 1}).refuse_unplaceable(nodes)
    with pytest.raises(
        ScenarioError, match="asks for 2 GPU a task, but the node with the most has 1"
    ):
        TaskResources.read({"num_gpus": 2}).refuse_unplaceable(nodes)
    with pytest.raises(ScenarioError, match=r"9 GB of memory a task.* has 8 GB of memory"):
        TaskResources.read({"memory": "9 GB"}).refuse_unplaceable(nodes)
    with pytest.raises(ScenarioError, match=r"4 CPU, 1 GPU.*which no single node has"):
        TaskResources.read({"num_cpus": 4, "num_gpus": 1}).refuse_unplaceable(nodes)


def test_only_ray_places_tasks_and_a_gpu_must_be_asked_for() -> None:
    with pytest.raises(ScenarioError, match="only 'ray' places tasks"):
        make_executor("threads", resources='{"num_gpus": 1}')
    with pytest.raises(
        ScenarioError, match=r"whose tasks have no GPU; --resources '\{\"num_gpus\""
    ):
        make_executor("ray", device="cuda")
    with pytest.raises(ScenarioError, match="a task sees only the GPU that Ray gives it"):
        make_executor("ray", device="cuda:1", resources='{"num_gpus": 1}')
