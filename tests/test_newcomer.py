"""``fedsim new`` and ``describe``: five answers become a study that runs, and names are told with figures and sources."""

import tomllib
from pathlib import Path

import pytest

from fedsim.lab.catalogue import about
from fedsim.lab.newcomer import hidden_for
from fedsim.lab.study.plan import read_study
from fedsim.learning.models import Perceptron
from tests.calls import call

LTE = ["--devices", "200 phones", "--link", "lte", "--model", "5 MB", "--target", "0.9", "--deadline", "try"]


def new(file: Path, *words: str, typed: str = "") -> tuple[int, str]:
    result = call("new", file, *words, input=typed)
    return result.exit_code, result.output


def test_the_answers_stand_in_the_study(tmp_path: Path) -> None:
    """A task takes 5 MB at 13 and 6 Mbit/s (3.08 and 6.67 s) and two epochs of 20 s; the middle deadline is that of it."""
    assert new(tmp_path / "lte.toml", *LTE)[0] == 0
    said = tomllib.loads((tmp_path / "lte.toml").read_text())
    base = said["base"]
    assert (base["population"]["devices"], base["stop"]["accuracy"], said["target"]) == (200, 0.9, 0.9)
    assert base["network"]["device"]["up"]["median"] == "6 Mbit/s"
    assert base["energy"]["preset"] == "smartphone-4g"
    assert said["parts"]["rounds"]["grid"]["strategy"]["deadline"] == ["35 s", "50 s", "75 s", "150 s"]
    parameters = Perceptron(hidden=base["model"]["hidden"]).parameters((64,), 10)
    assert 4 * parameters == pytest.approx(5e6, rel=0.002)


@pytest.mark.parametrize("kind", ["phones", "boards", "hospitals", "regions"])
def test_every_kind_of_device_makes_a_study_that_is_valid(tmp_path: Path, kind: str) -> None:
    """Asked, with Enter for what is usual; the plan of the study builds every scenario."""
    code, output = new(tmp_path / "my.toml", typed=f"4 {kind}\n20/5 Mbit/s\n100 kB\n\n30 s\n")
    assert code == 0, output
    study = read_study(tmp_path / "my.toml")
    assert len(study.spec.seeds) == 3
    assert study.spec.parts["rounds"].grid == {"strategy.deadline": ["15 s", "30 s", "60 s"]}


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--devices", "200 fones", "did you mean 'phones'"),
        ("--devices", "1 phones", "a count from 2 to 718"),
        ("--link", "lt", "did you mean 'lte'"),
        ("--model", "5", "a number and a unit out of B"),
        ("--target", "1.5", "between 0 and 1"),
        ("--deadline", "soon", "a number and a unit"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(tmp_path: Path, option: str, value: str, says: str) -> None:
    words = list(LTE)
    words[words.index(option) + 1] = value
    code, output = new(tmp_path / "my.toml", *words)
    assert (code, says in output) == (2, True), output
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "my.toml").write_text("mine")
    assert (new(tmp_path / "my.toml", *LTE)[0], (tmp_path / "my.toml").read_text()) == (2, "mine")


def test_a_wide_model_has_two_layers() -> None:
    assert hidden_for(64 * 100 + 100 + 100 * 10 + 10) == [100]
    assert hidden_for(64 * 3000 + 3000 + 3000 * 3000 + 3000 + 3000 * 10 + 10) == [3000, 3000]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("phone-mid", 'compute = "4 W"  # the chip\'s 4 W; cputronic.com, Snapdragon 695 (2021-10)'),
        ("lte", 'up = "6 Mbit/s"  # Huang et al., MobiSys 2012'),
        ("smartphone-4g", "tail_s = 11.576  # Huang et al., MobiSys 2012"),
        ("raspberry-pi-4", 'compute = "4.85 W"  # HPL'),
        ("energy.preset", "smartphone-wifi"),
        ("study.parts", "to the base, before the variants' own"),
        ("LTE links", "lte, one of the links"),
        ("message size", "messages.up.size"),
    ],
)
def test_names_are_told_with_figures_and_sources(name: str, says: str) -> None:
    assert any(says in line for line in about(name)), about(name)
