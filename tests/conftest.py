"""What the tests share: where real data are, and small scenarios."""

import gc
import hashlib
import importlib.util
import os
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

import fedsim
from fedsim.common import imports
from tests.children import adopt_orphans, all_end
from tests.shared import made_once

hypothesis.settings.register_profile("same-every-time", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same-every-time")

os.environ["FEDSIM_ALLOW_CODE"] = "tests"  # as a user who trusts a package says it once


def pytest_collection_finish() -> None:
    """What is there now stays: it need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


_LONG = tomllib.loads(Path(__file__).with_name("long.toml").read_text(encoding="utf-8"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``long.toml`` names."""
    for item in items:
        if _is_left_out(item):
            item.add_marker(pytest.mark.long)


def _is_left_out(item: pytest.Item) -> bool:
    for family in _families(item):
        if family in _LONG["whole"]:
            return True
        if family in _LONG["sampled"]:
            return _number_in_family(item) % _LONG["sampled"][family] != 0
    return False


def _families(item: pytest.Item) -> Iterator[str]:
    """The names of a test's function, of its class and of its file."""
    name = item.nodeid.partition("[")[0]
    while "::" in name:
        yield name
        name = name.rpartition("::")[0]
    yield name


def _number_in_family(item: pytest.Item) -> int:
    """The place of a test's function in its file, plus the place of its parameters in their list.

    pytest 9 gives all arguments of a function the place of their combination.
    """
    assert isinstance(item, pytest.Function)
    call = getattr(item, "callspec", None)
    places = call.indices.values() if call is not None else ()
    return _row(item) + max(places, default=0)


def _row(item: pytest.Function) -> int:
    owner = item.cls if item.cls is not None else item.module
    names = [name for name in dir(owner) if name.startswith("test")]
    return names.index(item.originalname)


def module_at(path: Path) -> ModuleType:
    """A file of the house that is no part of the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_children() -> None:
    """Children inherit ignored signals, and a shell's background jobs ignore SIGINT, those under
    nohup SIGHUP.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _orphans_are_adopted() -> None:
    adopt_orphans()


@pytest.fixture(autouse=True)
def _children_end_with_their_test() -> Iterator[None]:
    with all_end():
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data: ``$FEDSIM_DATA``, or ``shared/data`` beside the checkout."""
    folder = Path(os.environ.get("FEDSIM_DATA") or _BESIDE)
    if not folder.is_dir():
        pytest.skip(
            "needs real data: set FEDSIM_DATA to a folder with mnist/, fashion-mnist/ and traces/"
        )
    return folder


@pytest.fixture
def small() -> dict[str, Any]:
    """The sections of a scenario that takes a fraction of a second: unequal devices, a shared
    link, disconnections.
    """
    return {
        "name": "small",
        "seed": 3,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "training": {"lr": 0.1, "batch_size": 10},
        "population": {
            "devices": 20,
            "speed": {"kind": "lognormal", "median": "40 samples/s", "spread": 2.0},
            "jitter": 0.1,
            "availability": {"kind": "renewal", "mean_on": "2 min", "mean_off": "20 s"},
        },
        "network": {
            "kind": "star",
            "server": {"down": "400 kbit/s", "up": "100 kbit/s"},
            "device": {"down": "200 kbit/s", "up": "20 kbit/s", "latency": "50 ms"},
        },
        "strategy": {
            "kind": "fedavg",
            "clients_per_round": 6,
            "local_epochs": 2,
            "deadline": "30 s",
        },
        "stop": {"rounds": 8},
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any], Path], Path]:
    """``made(sections, folder)`` puts a finished run into ``folder``: a copy, to do anything
    with, of one that is made once.
    """
    originals: dict[str, Path] = {}

    def make(sections: dict[str, Any], folder: Path) -> Path:
        scenario = fedsim.Scenario(**sections)
        said = scenario.to_toml()
        if said not in originals:
            name = f"made-{hashlib.sha256(said.encode()).hexdigest()[:16]}"
            originals[said] = made_once(
                tmp_path_factory,
                name,
                lambda place: fedsim.run(scenario, place / "run", executor="inline"),
            )
        return Path(shutil.copytree(originals[said] / "run", folder))

    return make


@pytest.fixture
def tiny_run(
    small: dict[str, Any], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> Path:
    """The folder of a finished run of ``small``."""
    return made(small, tmp_path / "run")


@pytest.fixture(autouse=True)
def _own_files_are_forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process takes one file of a name as code; each test may have its own."""
    folder = None
    if "tmp_path" in request.fixturenames:
        folder = str(request.getfixturevalue("tmp_path"))
    yield
    for name, module in [*sys.modules.items()]:
        if folder is not None and str(getattr(module, "__file__", None)).startswith(folder):
            del sys.modules[name]
    for name in [
        name for name in imports._finder.locations if name.startswith(imports._FILE_PREFIX)
    ]:
        del imports._finder.locations[name]
        sys.modules.pop(name, None)
