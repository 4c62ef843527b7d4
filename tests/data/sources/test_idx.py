"""IDX files: what was written is read; whatever is damaged is refused with the file's name and its bytes."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.sources.images import read_idx, write_idx, write_whole
from fedsim.errors import DataError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


@pytest.mark.parametrize("name", ["images-idx3-ubyte", "images-idx3-ubyte.gz"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    write_idx(tmp_path / name, IMAGES)
    assert np.array_equal(read_idx(tmp_path / name, 3), IMAGES)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_header_is_the_published_one(tmp_path: Path) -> None:
    write_idx(tmp_path / "i", IMAGES)
    assert (tmp_path / "i").read_bytes()[:16].hex() == "00000803" + "00000003" + "00000004" + "00000005"


def refusal(path: Path, content: bytes, dimensions: int = 3) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path, dimensions)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "whole", IMAGES)
    content = (tmp_path / "whole").read_bytes()
    path = tmp_path / "broken"
    assert "promises 60 bytes of data, 55 are there" in refusal(path, content[:-5])
    assert "promises 60 bytes of data, and more are there" in refusal(path, content + b"!")
    assert "begins with 00000d03, not 00000803" in refusal(path, b"\x00\x00\x0d\x03" + content[4:])
    assert "begins with 00000803, not 00000801" in refusal(path, content, dimensions=1)
    assert "header takes 16 bytes, 9 are there" in refusal(path, content[:9])
    assert "header takes 16 bytes, 0 are there" in refusal(path, b"")
    assert "begins with 3c68746d" in refusal(path, b"<html>not found</html>")


def test_damaged_gzip_files_are_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 30), dtype=np.uint8)
    write_idx(tmp_path / "whole.gz", noise)
    content = (tmp_path / "whole.gz").read_bytes()
    path = tmp_path / "broken.gz"
    assert "truncated: its header promises 36000 bytes of data, " in refusal(path, content[:20_000])
    assert "damaged gzip" in refusal(path, content[:5_000] + b"\xff" * 100 + content[5_100:])
    wrong_checksum = content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]
    assert "damaged gzip" in refusal(path, wrong_checksum)
    assert "header takes 16 bytes, 3 are there" in refusal(path, gzip.compress(b"\x00\x00\x08"))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path, 3)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="target"):
        write_whole(tmp_path / "target", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
