"""The index of a study's folder: written whole, read back the same, refused where it is damaged
or leads elsewhere.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.common.errors import RunFolderError
from fedsim.lab.reading.study_folder import StudyIndex, is_done, is_study, read_index, write_index

ENTRY: dict[str, Any] = {
    "format": 1,
    "name": "small",
    "baseline": None,
    "targets": [0.5],
    "seeds": [1],
    "variants": [
        {
            "name": "fedavg",
            "label": "fedavg, lr=0.1",
            "point": {"training.lr": 0.1},
            "changes": {},
            "reference": False,
            "runs": [{"seed": 1, "folder": "runs/fedavg,lr=0.1/seed-1"}],
        }
    ],
}

# JSON as bytes has no lone surrogates
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    name=_texts,
    point=st.dictionaries(_texts, _values, max_size=3),
    changes=st.dictionaries(_texts, _values, max_size=3),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    point: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    place = tmp_path_factory.getbasetemp() / "written"
    place.mkdir(exist_ok=True)
    variant = ENTRY["variants"][0] | {
        "name": name,
        "label": name,
        "point": point,
        "changes": changes,
    }
    index = StudyIndex.model_validate_json(
        json.dumps(ENTRY | {"name": name, "variants": [variant]})
    )
    write_index(place, index)
    again = read_index(place)
    assert again == index
    assert list(again.variants[0].point.items()) == list(point.items())
    assert [path.name for path in place.iterdir()] == ["index.json"]


def refused(place: Path, content: Any) -> str:
    (place / "index.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(RunFolderError) as raised:
        read_index(place)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is damaged: all of it: Invalid JSON"),
        ("[" * 10_000, "is damaged: all of it"),
        ({"format": 2, "lines": []}, "is of format 2; this fedsim reads 1 alone"),
        (ENTRY | {"seeds": ["1"]}, "is damaged: seeds.0"),
        (ENTRY | {"variants": [{"name": "fedavg"}]}, "is damaged: variants.0.label"),
    ],
)
def test_what_is_no_index_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    assert says in refused(tmp_path, content)


@pytest.mark.parametrize(
    "folder",
    [
        "../else",
        "/etc",
        "runs/../../else",
        "runs//x",
        "runs\\x",
        "C:/x",
        "",
        ".",
        "runs/x\n",
        "runs/x/",
        ".hidden",
    ],
)
def test_no_run_lies_outside_the_folder(tmp_path: Path, folder: str) -> None:
    variant = ENTRY["variants"][0] | {"runs": [{"seed": 1, "folder": folder}]}
    assert "is damaged: variants.0.runs.0.folder" in refused(
        tmp_path, ENTRY | {"variants": [variant]}
    )


def test_what_a_newer_fedsim_adds_is_passed_over_and_a_folder_without_an_index_is_told_what_to_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "index.json").write_text(json.dumps(ENTRY | {"colour": "blue"}))
    assert read_index(tmp_path).name == "small"
    (tmp_path / "index.json").unlink()
    assert not is_study(tmp_path)
    with pytest.raises(RunFolderError, match="is not the folder of a study"):
        read_index(tmp_path)
    (tmp_path / "study.toml").touch()
    assert is_study(tmp_path)
    with pytest.raises(
        RunFolderError, match=r"fedsim study .* writes it, and does none of the runs again"
    ):
        read_index(tmp_path)


@pytest.mark.parametrize(
    ("summary", "done"),
    [
        ('{"status": "done"}', True),
        ('{"status": "interrupted"}', False),
        ("{}", False),
        ("[]", False),
        ("{", False),
    ],
)
def test_a_run_is_done_when_its_summary_says_so(tmp_path: Path, summary: str, done: bool) -> None:
    assert not is_done(tmp_path)
    (tmp_path / "summary.json").write_text(summary)
    assert is_done(tmp_path) is done
