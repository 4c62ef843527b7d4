"""Published files, archives and folders of the user's own: what was written is read, what is
damaged is refused.
"""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits

import fedsim
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.streams import Streams
from fedsim.common.units import SamplesPerSecond
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Digits, Source, Synthetic, _read_digits, every_fifth
from fedsim.learning.data.spec import DataSpec
from fedsim.learning.data.transforms import Augmentation
from fedsim.toolbox.partitions.plain import Dirichlet
from fedsim.toolbox.sources.images import (
    Cifar10,
    Emnist,
    Fashion,
    Mnist,
    read_idx,
)
from fedsim.toolbox.sources.own import HuggingFace, Npz
from fedsim.world.distributions import FromFile
from tests.learning.published_files import write_batch, write_idx


def refusal(source: Source, root: Path | None) -> str:
    with pytest.raises(DataError) as caught:
        source.load(root)
    return str(caught.value)


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_those_of_scikit_learn_wherever_it_keeps_them(
    found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not found:
        monkeypatch.setattr("fedsim.learning.data.sources.find_spec", lambda name: None)
    # not what was read before
    monkeypatch.setattr("fedsim.learning.data.sources._read_digits", _read_digits.__wrapped__)
    raw = Digits().load(None)
    pixels, labels = load_digits(return_X_y=True)
    test = every_fifth(labels)
    assert (raw.x_train.shape[1:], raw.classes) == Digits().shape_and_classes(None)
    assert (raw.peak, len(raw.y_test)) == (16.0, 355)
    for images, own, part in ((raw.x_train, raw.y_train, ~test), (raw.x_test, raw.y_test, test)):
        assert np.array_equal(images.reshape(-1, 64), pixels[part])
        assert np.array_equal(own, labels[part])


def test_mnist_as_published(mnist_raw: Raw) -> None:
    assert (mnist_raw.x_train.shape, mnist_raw.x_test.shape) == (
        (60_000, 1, 28, 28),
        (10_000, 1, 28, 28),
    )
    assert mnist_raw.y_train[:6].tolist() == [5, 0, 4, 1, 9, 2]
    assert np.bincount(mnist_raw.y_test).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
    assert mnist_raw.x_train.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert Mnist().shape_and_classes(None) == (mnist_raw.x_train.shape[1:], mnist_raw.classes)


@pytest.mark.parametrize("source", [Mnist(), Fashion(), Cifar10(), Emnist()])
def test_missing_files_are_named_with_their_folder(source: Source, tmp_path: Path) -> None:
    name = str(source.model_dump()["kind"])
    message = refusal(source, tmp_path)
    assert f"data.source is '{name}'" in message
    assert f"'{tmp_path}/" in message
    assert f"`fedsim data fetch {name} --root {tmp_path}`" in message
    if name == "mnist":
        (tmp_path / name).mkdir()
        write_idx(
            tmp_path / name / "train-images-idx3-ubyte.gz", np.zeros((1, 28, 28), dtype=np.uint8)
        )
        lacking = "train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte"
        assert f"put {lacking} (plain or .gz)" in refusal(source, tmp_path)


def test_packed_files_are_read_back_and_their_labels_and_counts_are_checked(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (50, 1, 28, 28), dtype=np.uint8)
    y = (np.arange(50) % 10).astype(np.uint8)
    for name, array in zip(Fashion.files, (x[:40, 0], y[:40], x[40:, 0], y[40:]), strict=True):
        write_idx(folder / f"{name}.gz", array)
    raw = Fashion().load(tmp_path)
    assert (np.array_equal(raw.x_train, x[:40]), np.array_equal(raw.x_test, x[40:])) == (True, True)
    assert raw.y_test.tolist() == [*range(10)]
    for packed in folder.iterdir():
        packed.unlink()
    for name, wrong, says in (
        (
            "t10k-labels-idx1-ubyte",
            np.full(10, 11),
            "t10k-labels-idx1-ubyte' has the label 11; allowed are 0 to 9",
        ),
        ("train-labels-idx1-ubyte", np.zeros(19), "has 20 images, but"),
        ("train-images-idx3-ubyte", np.zeros((20, 8, 8)), "8x8 pixels; 28x28 are expected"),
    ):
        rng = np.random.default_rng(0)
        usual = (
            rng.integers(0, 256, (20, 28, 28)),
            np.arange(20) % 10,
            rng.integers(0, 256, (10, 28, 28)),
            np.arange(10),
        )
        for file, array in (dict(zip(Fashion.files, usual, strict=True)) | {name: wrong}).items():
            write_idx(folder / file, array.astype(np.uint8))
        assert says in refusal(Fashion(), tmp_path)


def test_cifar_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    y = (np.arange(60) % 10).astype(np.uint8)
    for number, name in enumerate(Cifar10.files):
        tens = slice(10 * number, 10 * number + 10)
        write_batch(folder / name, x[tens], y[tens])
    raw = Cifar10().load(tmp_path)
    assert (np.array_equal(raw.x_train, x[:50]), np.array_equal(raw.y_test, y[50:])) == (True, True)
    batch = folder / "data_batch_3.bin"
    content = batch.read_bytes()
    damaged = {
        content[:-100]: "records of 3073 bytes are expected, 30630 bytes are there",
        b"": "0 bytes are there",
    }
    for changed, says in (
        damaged | {b"\x0a" + content[1:]: "data_batch_3.bin' has the label 10"}
    ).items():
        batch.write_bytes(changed)
        assert says in refusal(Cifar10(), tmp_path)


def test_emnist_is_put_upright_and_cut_to_its_ten_letters(tmp_path: Path) -> None:
    upright = np.random.default_rng(0).integers(0, 256, (124, 28, 28), dtype=np.uint8)
    labels = (np.arange(124) % 62).astype(np.uint8)
    (tmp_path / "emnist" / "gzip").mkdir(parents=True)
    arrays = (upright.swapaxes(1, 2), labels, upright[:62].swapaxes(1, 2), labels[:62])
    for name, array in zip(Emnist.files, arrays, strict=True):
        write_idx(tmp_path / "emnist" / "gzip" / f"{name}.gz", array)
    everything, letters = Emnist().load(tmp_path), Emnist(letters="a-j").load(tmp_path)
    assert np.array_equal(everything.x_train[:, 0], upright)
    assert everything.classes == 62
    assert letters.y_train.tolist() == [*range(10), *range(10)]
    assert np.array_equal(letters.x_test[:, 0], upright[36:46])
    assert letters.classes == 10


@pytest.mark.parametrize("shape", [(40, 7), (40, 6, 6), (40, 3, 6, 6)])
def test_npz_of_two_arrays_is_split_and_of_four_taken_as_it_is(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    np.savez(tmp_path / "mine.npz", x=np.ones(shape), y=np.arange(40) % 4)
    raw = Npz(path="mine.npz").load(tmp_path)
    assert (len(raw.y_train), np.bincount(raw.y_test).tolist(), raw.classes) == (
        32,
        [2, 2, 2, 2],
        4,
    )
    assert (raw.x_train.dtype, raw.x_train.ndim, raw.peak) == (
        np.float32,
        2 if len(shape) == 2 else 4,
        1.0,
    )
    x = np.arange(24, dtype=np.uint8).reshape(6, 4)
    np.savez(
        tmp_path / "mine.npz", x_train=x, y_train=[0, 1, 2, 0, 1, 2], x_test=x[:2], y_test=[2, 3]
    )
    raw = Npz(path=str(tmp_path / "mine.npz")).load(None)
    assert np.array_equal(raw.x_train, x)
    assert (raw.classes, raw.peak, raw.y_test.dtype) == (4, 255.0, np.int64)


def test_synthetic_devices_are_unlike_do_not_depend_on_each_other_and_spread_with_beta() -> None:
    sizes = np.array([400, 300, 500])
    few, many = (Synthetic().draw(chosen, Streams(4)) for chosen in (sizes[:2], sizes))
    assert np.array_equal(few.pool.x, many.pool.x[:700])
    assert np.array_equal(few.pool.y, many.pool.y[:700])
    assert many.pool.shape == (60,)
    first = many.pool.x[:400]
    assert first[:, 0].std() == pytest.approx(1.0, abs=0.15)
    assert first[:, 59].std() == pytest.approx(60**-0.6, rel=0.15)
    assert not np.array_equal(Synthetic().draw(sizes, Streams(5)).pool.x, many.pool.x)
    for beta, spread in (
        (0.0, pytest.approx(1 / np.sqrt(60), rel=0.25)),
        (3.0, pytest.approx(3.0, rel=0.2)),
    ):
        x = Synthetic(alpha=0.0, beta=beta).draw(np.full(200, 50), Streams(1)).pool.x
        assert x.reshape(200, 50, 60).mean(axis=(1, 2)).std() == spread


IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
NOISE = np.random.default_rng(0).integers(0, 256, (40, 30, 30), dtype=np.uint8)


def test_what_is_written_is_read_and_what_is_damaged_is_refused(tmp_path: Path) -> None:
    contents = []
    for name, array in (("plain", IMAGES), ("noise.gz", NOISE)):
        write_idx(tmp_path / name, array)
        assert np.array_equal(read_idx(tmp_path / name, 3), array)
        contents.append((tmp_path / name).read_bytes())
    plain, packed = contents
    assert plain[:16].hex() == "00000803" + "00000003" + "00000004" + "00000005"
    damaged = {
        plain[:-5]: "76 bytes are expected, 71 are there",
        plain + b"!": "76 bytes are expected, more are there",
        b"\x00\x00\x0d\x03" + plain[4:]: "begins with 00000d03, not 00000803",
        plain[:9]: "16 bytes are expected, 9 are there",
        b"": "begins with , not 00000803",
        packed[:20_000]: "damaged gzip",
        packed[:5_000] + b"\xff" * 100 + packed[5_100:]: "damaged gzip",
        packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]: "damaged gzip",
        gzip.compress(b"\x00\x00\x08"): "begins with 000008, not",
    }
    for content, says in damaged.items():
        (tmp_path / "plain").write_bytes(content)
        with pytest.raises(DataError, match=f"'{tmp_path}/plain' .*{says}"):
            read_idx(tmp_path / "plain", 3)
    (tmp_path / "target").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "target", 3)
    with pytest.raises(OSError, match="target"):
        write_idx(tmp_path / "target", IMAGES)
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "noise.gz", "target"}


ONE = np.ones((3, 2))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (None, "names 'mine.npz', which does not exist"),
        ({"x": ONE}, "has no array 'y'; it has x"),
        ({"images": ONE}, "has no array 'x_train'; it has images"),
        ({"x": ONE, "y": np.ones((3, 2, 2))}, "'y' is of shape (3, 2, 2) and type float64"),
        (
            {"x": -np.ones((3, 2), int), "y": np.arange(3)},
            "the least is -1; tokens are integers from 0",
        ),
        ({"x": ONE, "y": np.full(3, np.nan)}, "not finite"),
        ({"x": ONE, "y": np.arange(4)}, "'x' has 3 samples and 'y' 4 labels"),
        ({"x": ONE[:0], "y": np.arange(0)}, "must match and not be empty"),
        ({"x": ONE, "y": np.array([0, -1, 1])}, "has the label -1"),
        ({"x": np.ones(3), "y": np.arange(3)}, "'x' is of shape (3,)"),
        (
            {"x": ONE.astype(complex), "y": np.arange(3)},
            "type complex128; allowed are uint8 and floats",
        ),
        ({"x": np.full((3, 2), np.nan), "y": np.arange(3)}, "not finite"),
        ({"x": np.array([[{}]] * 3), "y": np.arange(3)}, "cannot be read as an .npz archive"),
        (
            {
                "x_train": ONE,
                "y_train": np.arange(3),
                "x_test": np.ones((3, 5)),
                "y_test": np.arange(3),
            },
            "but x_test of (5,)",
        ),
    ],
)
def test_malformed_npz(
    arrays: dict[str, Any] | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if arrays is not None:
        np.savez("mine.npz", **arrays)
    assert says in refusal(Npz(path="mine.npz"), None)


X = np.arange(240, dtype=np.float32).reshape(20, 4, 3)
Y = np.arange(20) % 2


def save(folder: Path, columns: dict[str, Any], files: int = 2) -> None:
    """What ``save_to_disk`` writes of one data set."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    for number, name in enumerate(names):
        size = len(table) // files
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table.slice(number * size, size))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.float32(), 3), 4)], ids=str
)
def test_lists_of_numbers_of_which_every_fifth_is_for_tests(
    kind: pa.DataType, tmp_path: Path
) -> None:
    save(tmp_path / "set", {"x": pa.array(X.tolist(), kind), "label": Y})
    raw = HuggingFace(path="set", x="x").load(tmp_path)
    assert (raw.x_train.shape, raw.x_test.shape, raw.classes, raw.peak) == (
        (16, 1, 4, 3),
        (4, 1, 4, 3),
        2,
        1.0,
    )
    both = np.concatenate([raw.x_train, raw.x_test])[:, 0]
    assert np.array_equal(both[np.argsort(both[:, 0, 0])], X)


def test_images_in_two_splits(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)

    def written(values: Any) -> dict[str, Any]:
        file = io.BytesIO()
        image.fromarray(values).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    for part, last in (("train", 20), ("test", 4)):
        save(
            tmp_path / "set" / part,
            {"image": [written(each) for each in pixels[:last]], "label": Y[:last]},
        )
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    raw = HuggingFace(path="set").load(tmp_path)
    assert np.array_equal(raw.x_train, pixels.transpose(0, 3, 1, 2))
    assert np.array_equal(raw.x_test, raw.x_train[:4])
    assert (raw.y_train.tolist(), raw.peak) == (Y.tolist(), 255.0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "there is no '.*state.json'; give a folder that datasets' save_to_disk has written"),
        ({"img": X.tolist(), "label": Y}, "has no column 'image'; it has img, label"),
        (
            {"image": [[1.0], [1.0, 2.0]], "label": [0, 1]},
            "lists of column 'image' are not all of one length",
        ),
        (
            {"image": ["a", "b"], "label": [0, 1]},
            "column 'image' is of type string; allowed are images, numbers",
        ),
        ({"image": [[1.0], None], "label": [0, 1]}, "column 'image' has no value at 1 places"),
        (
            {"image": [{"bytes": b"a"}, {"bytes": b"b"}], "label": [0, 1]},
            "has an image that cannot be read",
        ),
    ],
)
def test_mistakes_are_named(columns: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    if columns is not None:
        save(tmp_path / "set", columns)
    with pytest.raises(DataError, match=message):
        HuggingFace(path="set").load(tmp_path)


@pytest.mark.parametrize(
    ("written", "partition", "normalize", "augmentation"),
    [
        ({}, "iid", "pixel", "none"),
        ({"source": "mnist", "partition": "power-law"}, "power-law", "standardize", "none"),
        ({"source": "fashion", "partition": {"kind": "ditto"}}, "ditto", "standardize", "none"),
        ({"source": "fashion", "partition": Dirichlet()}, "dirichlet", "pixel", "none"),
        ({"source": "synthetic"}, "synthetic", "none", "none"),
        ({"source": "mnist", "partition": "class-bias"}, "class-bias", "pixel", Augmentation()),
        ({"partition": "class-bias", "augmentation": "none"}, "class-bias", "pixel", "none"),
        ({"partition": "power-law", "normalize": "pixel"}, "power-law", "pixel", "none"),
        ({"augmentation": {"flip": 0.0}}, "iid", "pixel", Augmentation(flip=0.0)),
    ],
)
def test_what_is_usual_is_written_out(
    written: dict[str, Any], partition: str, normalize: str, augmentation: object
) -> None:
    spec = DataSpec(**written)
    assert (spec.partition.kind, spec.normalize, spec.augmentation) == (
        partition,
        normalize,
        augmentation,
    )
    assert DataSpec(**spec.model_dump()) == spec
    if not written:
        data = spec.build(10, Streams(1))
        x, y = data.train_samples(data.shards[0])
        assert (x.shape[1:], data.pool.classes) == spec.shape_and_classes()
        assert (x.min(), x.max(), y.dtype) == (0.0, 1.0, np.int64)


def test_a_kind_that_is_a_table_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"data\.partition\.kind is"):
        fedsim.Scenario(data={"partition": {"kind": {"kind": "iid"}}})


def test_augmented_devices_each_draw_their_own_way() -> None:
    spec = DataSpec(
        partition={"kind": "class-bias", "sizes": {"kind": "uniform", "low": 20, "high": 30}}
    )
    data = spec.build(6, Streams(1))
    assert len({shard.augment_seed for shard in data.shards}) == 6
    assert data.augmentation == Augmentation()
    x, _ = data.train_samples(data.shards[0])
    plain = data.pool.normalised(data.pool.x[data.shards[0].train].astype(np.float32))
    assert (x != plain).any()
    assert np.array_equal(x, spec.build(6, Streams(1)).train_samples(data.shards[0])[0])
    assert data.shards[0].augment_seed != spec.build(6, Streams(2)).shards[0].augment_seed
    with pytest.raises(
        ScenarioError, match=r"data.augmentation is given for samples of shape \(60,\)"
    ):
        DataSpec(source="synthetic", augmentation={}).build(3, Streams(1))


def test_ones_own_files_are_sought_in_the_working_directory_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("shared", "said"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    with pytest.raises(DataError, match=r"into 'mnist', or run `fedsim data fetch mnist --root .`"):
        DataSpec(source="mnist").build(10, Streams(1))
    table = FromFile[SamplesPerSecond](
        kind="file", file="speeds.csv", column="speed", unit="samples/s"
    )
    section: dict[str, Any] = {
        "source": {"kind": "npz", "path": "mine.npz"},
        "partition": {"kind": "file", "path": "who.json"},
    }

    def found() -> list[float]:
        data = DataSpec(**section).build(1, Streams(1))
        speeds = table.by_device(
            "speed", np.random.default_rng(1), 1, DataSpec(**section).own_folder()
        )
        return [data.pool.x[0, 0], data.train_sizes()[0], speeds[0]]

    monkeypatch.setenv("FEDSIM_DATA", "shared")
    with pytest.raises(
        DataError,
        match=r"'shared/mine.npz', which does not exist; .* the working directory and then in",
    ):
        found()
    for folder, value in (("shared", 3), (".", 4), ("said", 5)):
        # it is sought there, and nowhere else
        section |= {"root": folder} if folder == "said" else {}
        np.savez(Path(folder, "mine.npz"), x=np.full((20, 3), float(value)), y=np.arange(20) % 2)
        Path(folder, "who.json").write_text(json.dumps({"0": [*range(value)]}))
        Path(folder, "speeds.csv").write_text(f"device,speed\n0,{value}\n")
        assert found() == [value] * 3


def test_fedprox_mnist_is_standardised_over_all_samples(data_root: Path) -> None:
    data = DataSpec(source="mnist", root=str(data_root), partition="power-law").build(
        1000, Streams(1)
    )
    some = np.s_[..., ::3, ::3]  # pixels; of all samples
    x = data.pool.normalised(data.pool.x.astype(np.float32))[some]
    changing = data.pool.x[some].std(axis=0) > 5
    assert x[:, changing].mean(axis=0) == pytest.approx(0.0, abs=1e-4)
    assert x[:, changing].std(axis=0) == pytest.approx(1.0, abs=1e-3)
