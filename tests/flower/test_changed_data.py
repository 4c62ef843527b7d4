"""Nodes whose data change by themselves: they say so with their next answer, and migrate."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedsim.deployed import client
from fedsim.deployed.client import client_app
from fedsim.deployed.export import export
from fedsim.deployed.server import Deployment
from fedsim.running.scenario import Scenario, load
from tests.flower.nodes import NODES, ThreadGrid

ROUNDS = 4
FLEXCFL = {
    "kind": "flexcfl",
    "groups": 2,
    "clients_per_round": NODES,
    "moment": {"kind": "pre-training", "devices": NODES, "shift": "aligned_l1"},
}


def write_shards(path: Path, groups: list[int]) -> None:
    """Write the shards of the nodes, of which each has the digits 0 to 4 or 5 to 9."""
    labels = Scenario(data={"source": "digits"}).data.source.load(None).y_train
    by_group = [np.flatnonzero(labels // 5 == group) for group in range(2)]
    shards = {
        device: by_group[group][device::NODES].tolist() for device, group in enumerate(groups)
    }
    path.write_text(json.dumps(shards))


class ChangingGrid(ThreadGrid):
    """From the third round on, the first node has other digits on its disk.

    They change before the round's first message is handed on: no node is at work then.
    """

    shards: Path

    def _push(self, message: Message) -> str:
        if self._count == 3 * NODES:
            write_shards(self.shards, [1, 0, 1, 1])
            client._halves.clear()  # Flower starts a process for each message
        return super()._push(message)


def test_a_node_whose_labels_change_moves_to_another_group(tmp_path: Path) -> None:
    shards = tmp_path / "shards.json"
    write_shards(shards, [0, 0, 1, 1])
    scenario = Scenario(
        data={"source": "digits", "partition": {"kind": "file", "path": str(shards)}},
        population={"devices": NODES, "speed": "500 samples/s"},
        strategy=FLEXCFL,
        stop={"rounds": ROUNDS},
    )
    export(scenario, tmp_path / "app")
    path = tmp_path / "app/fedsim_app/scenario.toml"
    grid = ChangingGrid(client_app(path), 0.0)
    grid.shards = shards
    deployment = Deployment(load(path), grid, 0.0)
    deployment.execute(tmp_path / "out", 0, 60.0)
    tests = [record for record in deployment.records if record.kind == "shift-test"]
    moves = [
        (record.fields["device"], record.fields["why"])
        for record in deployment.records
        if record.kind == "assign"
    ]
    assert [record.fields["device"] for record in tests if record.fields["fired"]] == [0]
    assert moves[-1] == (0, "migration")
    assert [why for _, why in moves[:-1]] == ["pre-training"] * NODES
