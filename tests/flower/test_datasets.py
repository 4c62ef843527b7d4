"""The page's example of Flower's partitions, as it stands there."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr_datasets")

import fedsim

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's libraries
def test_a_partition_of_flower_s_deals_fedsim_s_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    Path("scenario.toml").write_text(fedsim.Scenario().to_toml())
    exec(compile(example, str(PAGE), "exec"), {})
    sections = {"data": {"partition": {"kind": "file", "path": "shards.json"}}, "population": {"devices": 20}}
    summary = fedsim.run(fedsim.Scenario(**sections, stop={"rounds": 1}), executor="inline").summary
    assert summary["rounds"] == 1
