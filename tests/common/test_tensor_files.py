"""Files of tensors that are written and read one tensor at a time, against safetensors."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedsim.common.arrays import AnyArray
from fedsim.common.tensor_files import StoredTensor, open_tensors, write_tensors

TYPES = (
    *("float64", "float32", "float16", "int64", "uint64", "int32", "uint32", "int16", "uint16"),
    *("int8", "uint8", "bool", "complex64"),
)


class Counted(StoredTensor):
    """Tensor whose elements are made when it is read."""

    def read(self) -> AnyArray:
        return np.full(self.shape, 3, dtype=self.dtype)


def _tensors() -> dict[str, AnyArray]:
    """Tensors of each type, with names that need escapes, and shapes without elements."""
    tensors: dict[str, AnyArray] = {}
    for number, name in enumerate(TYPES):
        tensors[f"{9 - number % 4}/{name}"] = np.arange(number + 1).astype(name)
        tensors[f'"\\\n\x01é{number}'] = np.ones((2, 0, number), dtype=name)
    tensors["a/b"] = np.array(3.5, dtype=np.float32)
    tensors["a-b"] = np.arange(6.0).reshape(2, 3).T
    return tensors


def test_files_have_the_bytes_of_safetensors(tmp_path: Path) -> None:
    tensors = _tensors()
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    contiguous["a/b"] = contiguous["a/b"].reshape(())
    save_file(contiguous, tmp_path / "theirs")
    sha256 = write_tensors(tmp_path / "ours", tensors)
    content = (tmp_path / "ours").read_bytes()
    assert content == (tmp_path / "theirs").read_bytes()
    assert sha256 == hashlib.sha256(content).hexdigest()


def test_stored_tensors_are_written_as_if_they_were_arrays(tmp_path: Path) -> None:
    shape = (3, 2)
    write_tensors(tmp_path / "stored", {"x": Counted(np.dtype(np.float32), shape)})
    write_tensors(tmp_path / "arrays", {"x": np.full(shape, 3, dtype=np.float32)})
    assert (tmp_path / "stored").read_bytes() == (tmp_path / "arrays").read_bytes()


def test_files_are_read_as_safetensors_reads_them(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", _tensors())
    theirs = load_file(tmp_path / "file")
    ours = open_tensors(tmp_path / "file", hashed=True)
    assert ours.sha256 == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    assert ours.tensors.keys() == theirs.keys()
    for name, tensor in ours.tensors.items():
        array = tensor.read()
        assert array.flags.writeable
        assert array.dtype == theirs[name].dtype
        assert array.shape == theirs[name].shape == tensor.shape
        assert array.tobytes() == theirs[name].tobytes()


def test_a_deleted_file_is_readable_while_a_tensor_is_in_use(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"x": np.arange(3)})
    tensor = open_tensors(tmp_path / "file").tensors["x"]
    (tmp_path / "file").unlink()
    assert tensor.read().tolist() == [0, 1, 2]


def test_unknown_types_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'x' is of type complex128; allowed are"):
        write_tensors(tmp_path / "file", {"x": np.zeros(2, dtype=np.complex128)})
    assert not (tmp_path / "file").exists()


DAMAGES = {
    "cut": lambda head, _: head[:4],
    "too long a table": lambda head, body: (1 << 40).to_bytes(8, "little") + head[8:] + body,
    "no table": lambda head, body: head[:8] + b"[" + head[9:] + body,
    "outside": lambda head, body: head + body[:-1],
    "another shape": lambda head, body: head.replace(b"[2,2]", b"[2,1]") + body,
    "negative": lambda head, body: head.replace(b"[2,2]", b"-1,-4"[:5]) + body,
    "unknown type": lambda head, body: head.replace(b"F32", b"F31") + body,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    write_tensors(tmp_path / "file", {"x": np.zeros((2, 2), dtype=np.float32)})
    content = (tmp_path / "file").read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    json.loads(content[8:length])
    (tmp_path / "file").write_bytes(DAMAGES[damage](content[:length], content[length:]))
    with pytest.raises(ValueError, match=r"."):
        open_tensors(tmp_path / "file")
