"""``[data]`` as a scenario writes it, and what can be tested of downloads without a network."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedsim.data.partitions import Iid, SyntheticSizes
from fedsim.data.sources import Digits
from fedsim.data.spec import DataSpec
from fedsim.data.transforms import Augmentation
from fedsim.errors import DataError, FedsimError, ScenarioError
from fedsim.language.units import SamplesPerSecond
from fedsim.streams import Streams
from fedsim.toolbox.partitions.plain import Dirichlet
from fedsim.toolbox.partitions.published import PowerLaw
from fedsim.toolbox.sources.images import Emnist, Mnist, as_images, fetch
from fedsim.world.distributions import FromFile
from tests.data.small import assert_same


def test_names_are_short_for_tables() -> None:
    spec = DataSpec(source="mnist", partition="power-law")
    assert (spec.source, spec.partition) == (Mnist(), PowerLaw())
    spec = DataSpec(source={"kind": "emnist", "letters": "a-j"}, partition={"kind": "dirichlet", "alpha": 0.1})
    assert (spec.source, spec.partition) == (Emnist(letters="a-j"), Dirichlet(alpha=0.1))


@pytest.mark.parametrize(
    ("written", "partition", "normalise", "augmentation"),
    [
        ({}, "iid", "pixel", "none"),
        ({"source": "mnist", "partition": "power-law"}, "power-law", "standardise", "none"),
        ({"source": "fashion", "partition": {"kind": "ditto"}}, "ditto", "standardise", "none"),
        ({"source": "fashion", "partition": Dirichlet()}, "dirichlet", "pixel", "none"),
        ({"source": "synthetic"}, "synthetic", "none", "none"),
        ({"source": "mnist", "partition": "class-bias"}, "class-bias", "pixel", Augmentation()),
        ({"partition": "class-bias", "augmentation": "none"}, "class-bias", "pixel", "none"),
        ({"partition": "power-law", "normalise": "pixel"}, "power-law", "pixel", "none"),
        ({"augmentation": {"flip": 0.0}}, "iid", "pixel", Augmentation(flip=0.0)),
    ],
)
def test_what_is_usual_for_a_partition_is_written_out(
    written: dict[str, Any], partition: str, normalise: str, augmentation: object
) -> None:
    spec = DataSpec(**written)
    assert (spec.partition.kind, spec.normalise, spec.augmentation) == (partition, normalise, augmentation)
    assert DataSpec(**spec.model_dump()) == spec


def test_the_default_is_digits_and_iid() -> None:
    spec = DataSpec()
    assert (spec.source, spec.partition) == (Digits(), Iid())
    data = spec.build(10, Streams(1))
    x, y = data.train_samples(data.shards[0])
    assert (x.shape[1:], data.pool.classes) == spec.shape_and_classes()
    assert (x.min(), x.max(), y.dtype) == (0.0, 1.0, np.int64)


@pytest.mark.parametrize(
    "written",
    [
        {"source": "mnits"},
        {"source": 5},
        {"source": {"kind": "npz"}},
        {"partition": "dirichlett"},
        {"partition": {"alpha": 1.0}},
        {"source": "synthetic", "partition": "iid"},
        {"source": "mnist", "partition": "synthetic"},
        {"normalise": "z"},
        {"augmentation": "some"},
        {"parttion": "iid"},
    ],
)
def test_wrong_sections_are_refused(written: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DataSpec(**written)


def test_synthetic_brings_its_own_devices() -> None:
    spec = DataSpec(source={"kind": "synthetic", "alpha": 0.5, "features": 7, "classes": 3})
    assert isinstance(spec.partition, SyntheticSizes)
    data = spec.build(5, Streams(2))
    assert (data.pool.shape, data.pool.classes) == spec.shape_and_classes() == ((7,), 3)
    assert len(data.shards) == 5
    assert_same(data, spec.build(5, Streams(2)))


def test_augmented_devices_each_draw_their_own_way() -> None:
    spec = DataSpec(partition={"kind": "class-bias", "sizes": {"kind": "uniform", "low": 20, "high": 30}})
    data = spec.build(6, Streams(1))
    assert len({shard.augment_seed for shard in data.shards}) == 6
    assert data.augmentation == Augmentation()
    x, _ = data.train_samples(data.shards[0])
    plain = data.pool.normalised(data.pool.x[data.shards[0].train].astype(np.float32))
    assert x.shape == plain.shape
    assert not np.array_equal(x, plain)
    assert np.array_equal(x, spec.build(6, Streams(1)).train_samples(data.shards[0])[0])
    assert data.shards[0].augment_seed != spec.build(6, Streams(2)).shards[0].augment_seed


def test_vectors_are_not_augmented() -> None:
    with pytest.raises(ScenarioError, match=r"data.augmentation is given for samples of shape \(60,\)"):
        DataSpec(source="synthetic", augmentation={}).build(3, Streams(1))


def test_files_are_sought_under_root_then_under_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    with pytest.raises(DataError, match="neither is set"):
        DataSpec(source="mnist").build(10, Streams(1))
    np.savez(tmp_path / "mine.npz", x=np.ones((20, 3)), y=np.arange(20) % 2)
    (tmp_path / "who.json").write_text('{"0": [0, 1], "1": [2, 3, 4]}')
    section = {"source": {"kind": "npz", "path": "mine.npz"}, "partition": {"kind": "file", "path": "who.json"}}
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path))
    assert DataSpec(**section).build(2, Streams(1)).train_sizes().tolist() == [2, 3]
    assert DataSpec(**section).shape_and_classes() == ((3,), 2)
    monkeypatch.setenv("FEDSIM_DATA", "elsewhere")
    assert DataSpec(root=str(tmp_path), **section).build(2, Streams(1)).train_sizes().tolist() == [2, 3]
    with pytest.raises(DataError, match=r"'elsewhere/mine.npz', which does not exist; .* the working directory and then in"):
        DataSpec(**section).build(2, Streams(1))


def test_all_files_of_ones_own_are_sought_in_the_working_directory_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path / "shared"))
    table = FromFile[SamplesPerSecond](kind="file", file="speeds.csv", column="speed", unit="samples/s")
    section = {"source": {"kind": "npz", "path": "mine.npz"}, "partition": {"kind": "file", "path": "who.json"}}

    def found() -> list[float]:
        data = DataSpec(**section).build(1, Streams(1))
        speeds = table.by_device("speed", np.random.default_rng(1), 1, DataSpec(**section).own_folder())
        return [data.pool.x[0, 0], data.train_sizes()[0], speeds[0]]

    for folder, value in (("shared", 3), (".", 4)):
        np.savez(Path(folder, "mine.npz"), x=np.full((20, 3), float(value)), y=np.arange(20) % 2)
        Path(folder, "who.json").write_text(json.dumps({"0": [*range(value)]}))
        Path(folder, "speeds.csv").write_text(f"device,speed\n0,{value}\n")
        assert found() == [value] * 3


def test_fedprox_mnist_is_standardised_over_all_samples(data_root: Path) -> None:
    data = DataSpec(source="mnist", root=str(data_root), partition="power-law").build(1000, Streams(1))
    some = np.s_[..., ::3, ::3]  # pixels; of all samples
    x = data.pool.normalised(data.pool.x.astype(np.float32))[some]
    changing = data.pool.x[some].std(axis=0) > 5
    assert x[:, changing].mean(axis=0) == pytest.approx(0.0, abs=1e-4)
    assert x[:, changing].std(axis=0) == pytest.approx(1.0, abs=1e-3)


def test_importing_the_section_loads_nothing_heavy() -> None:
    heavy = {"torch", "sklearn", "pandas", "matplotlib", "ray"}
    code = f"import sys, fedsim.data.spec, fedsim.toolbox.sources.images; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnits", r"'mnits' is unknown; allowed are mnist, fashion, cifar10, emnist .did you mean 'mnist'"),
        ("emnist", r"by hand: put emnist-byclass-train-images-idx3-ubyte, .* into '.*/emnist'; .*nist.gov"),
    ],
)
def test_what_cannot_be_fetched_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(FedsimError, match=says):
        fetch(name, tmp_path)


def test_tables_become_images() -> None:
    table = np.arange(2 * 12).reshape(2, 12).astype(np.float64)
    x, y = as_images("t", table, np.array(["3", "9"], dtype=object), (3, 2, 2))
    assert (x.shape, x.dtype, y.tolist()) == ((2, 3, 2, 2), np.uint8, [3, 9])
    assert x[1, 2].tolist() == [[20, 21], [22, 23]]


@pytest.mark.parametrize("table", [np.zeros((2, 11)), np.zeros((3, 12)), np.full((2, 12), 256.0), np.full((2, 12), -1.0)])
def test_strange_tables_are_refused(table: np.ndarray) -> None:
    with pytest.raises(DataError, match="OpenML sent a table"):
        as_images("t", table, np.array(["3", "9"]), (3, 2, 2))
