"""FedScale's table: read, drawn, refused."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.errors import DataError
from fedsim.streams import Streams
from fedsim.world.device_kinds import FedScaleCapacity, read_capacities


def write(folder: Path, text: str) -> None:
    (folder / "traces").mkdir()
    (folder / "traces" / "fedscale_capacity_9242.csv").write_text(text)


def test_units(tmp_path: Path) -> None:
    write(tmp_path, "client,computation_ms_per_sample,communication_kbps,dl_kbps,ul_kbps\n0,50,1,8000,800\n")
    drawn = FedScaleCapacity().draw(Streams(1), 3, tmp_path)
    assert drawn.links is not None
    assert drawn.speed == pytest.approx(np.full(3, 1000 / 150))  # 3 x 50 ms a sample
    assert drawn.links[0] == pytest.approx(np.full(3, 1e6))
    assert drawn.links[1] == pytest.approx(np.full(3, 1e5))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("computation_ms_per_sample,dl_kbps\n1,2\n", "has no column 'ul_kbps'"),
        ("computation_ms_per_sample,dl_kbps,ul_kbps\n1,2,0\n", "row 1.*ul_kbps is '0'"),
        ("computation_ms_per_sample,dl_kbps,ul_kbps\n1,2,3\n4,x,6\n", "row 2.*dl_kbps is 'x'"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, what: str) -> None:
    write(tmp_path, text)
    with pytest.raises(DataError, match=what):
        FedScaleCapacity().draw(Streams(1), 3, tmp_path)


def test_the_published_table(data_folder: Path) -> None:
    assert read_capacities(data_folder / FedScaleCapacity().file).shape == (9242, 3)
    assert len(np.unique(FedScaleCapacity().draw(Streams(1), 5000, data_folder).speed)) > 50
