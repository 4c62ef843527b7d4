"""The user's own partition."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.dataset import Dataset
from fedsim.data.federated import FederatedData
from fedsim.data.partitions import PartitionFile
from fedsim.errors import DataError, ScenarioError
from fedsim.streams import Streams
from tests.data.conftest import held_out


def split(path: Path, dataset: Dataset, devices: int) -> FederatedData:
    return PartitionFile(path=path.name).under(path.parent).split(dataset, devices, Streams(1))


def as_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_json_of_objects(tmp_path: Path, small: Dataset) -> None:
    path = as_json(tmp_path / "p.json", {"anna": {"train": [3, 1], "test": [0, 199]}, "bert": {"train": [1, 599]}})
    data = split(path, small, 2)
    assert [shard.train.tolist() for shard in data.shards] == [[3, 1], [1, 599]]
    assert [shard.test.tolist() for shard in data.shards] == [[600, 799], []]


def test_json_of_lists_has_test_samples_after_its_labels(tmp_path: Path, small: Dataset) -> None:
    data = split(as_json(tmp_path / "p.json", {"0": [0, 10, 20], "1": [1, 11]}), small, 2)
    assert [set(small.pool.y[shard.test]) for shard in data.shards] == [{0}, {1}]
    assert held_out(data).tolist() == [20, 20]


def test_npz(tmp_path: Path, small: Dataset) -> None:
    np.savez(tmp_path / "p.npz", train_0=[5, 6], train_1=np.array([7], dtype=np.uint16), test_0=[3])
    data = split(tmp_path / "p.npz", small, 2)
    assert [shard.train.tolist() for shard in data.shards] == [[5, 6], [7]]
    assert [shard.test.tolist() for shard in data.shards] == [[603], []]
    assert data.shards[1].train.dtype == np.int32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([[1, 2]], "is not an object of devices"),
        ({"0": 5}, "device 0 is neither a list nor an object"),
        ({"0": {"tests": [5]}}, "device 0 is neither a list nor an object"),
        ({"0": [600]}, "device 0, train has the index 600; allowed are 0 to 599"),
        ({"0": [-1]}, "device 0, train has the index -1"),
        ({"0": {"train": [1], "test": [200]}}, "device 0, test has the index 200; allowed are 0 to 199"),
        ({"0": [1.5]}, "not a list of whole numbers"),
        ({"0": ["1"]}, "not a list of whole numbers"),
        ({"0": [True]}, "not a list of whole numbers"),
        ({"0": [1, [2]]}, "not a list of whole numbers"),
        ({"0": [10**30]}, "not a list of whole numbers"),
    ],
)
def test_malformed_json(tmp_path: Path, small: Dataset, content: object, says: str) -> None:
    with pytest.raises(DataError) as caught:
        split(as_json(tmp_path / "p.json", content), small, 1)
    assert says in str(caught.value)
    assert str(tmp_path / "p.json") in str(caught.value)


def test_no_json(tmp_path: Path, small: Dataset) -> None:
    (tmp_path / "p.json").write_text('{"0": [1')
    with pytest.raises(DataError, match="cannot be read as JSON"):
        split(tmp_path / "p.json", small, 1)
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        split(tmp_path / "p.json", small, 1)
    with pytest.raises(DataError, match=r"data.partition.path names '.*absent.json', which does not exist"):
        split(tmp_path / "absent.json", small, 1)


def test_malformed_npz(tmp_path: Path, small: Dataset) -> None:
    np.savez(tmp_path / "p.npz", train_0=[1], train_2=[2])
    with pytest.raises(DataError, match=r"holds train_2; allowed are train_0, train_1"):
        split(tmp_path / "p.npz", small, 2)
    (tmp_path / "p.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"cannot be read as an .npz archive"):
        split(tmp_path / "p.npz", small, 2)
    with pytest.raises(DataError, match="does not exist"):
        split(tmp_path / "absent.npz", small, 2)


def test_devices_must_match_and_hold_something(tmp_path: Path, small: Dataset) -> None:
    path = as_json(tmp_path / "p.json", {"0": [1], "1": []})
    with pytest.raises(ScenarioError, match=r"population.devices is 5; the partition file '.*' has 2 devices"):
        split(path, small, 5)
    with pytest.raises(ScenarioError, match="device 1 gets no training samples"):
        split(path, small, 2)
