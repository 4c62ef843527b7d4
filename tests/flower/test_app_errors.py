"""The error of an app names the app, the place in it and what to do; needs no Flower."""

import socket
from pathlib import Path

import pytest

from fedsim.flower.app_errors import error_of_app

CODE = """
def main():
    return helper(0)

def helper(number):
    return 1 / number

def fetch():
    try:
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files")
    except OSError as error:
        raise RuntimeError("no data set") from error
"""


def raised(folder: Path, call: str) -> BaseException:
    (folder / "parts").mkdir(parents=True)
    path = folder / "parts" / "server_app.py"
    path.write_text(CODE)
    names: dict[str, object] = {}
    exec(compile(CODE, str(path), "exec"), names)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        names[call]()  # type: ignore[operator]
    return caught.value


def test_an_error_names_folder_file_line_and_calls(tmp_path: Path) -> None:
    folder = tmp_path / "my app"
    told = error_of_app(raised(folder, "main"), folder)
    assert told.startswith("ZeroDivisionError: division by zero, in server_app.py, line 6; by ")
    assert "parts/server_app.py:3 main > parts/server_app.py:6 helper" in told
    assert f"the app is in {str(folder)!r}" in told
    assert "HF_HUB_OFFLINE" not in told


def test_data_without_a_hub_gets_a_hint(tmp_path: Path) -> None:
    told = error_of_app(raised(tmp_path / "app", "fetch"), tmp_path / "app")
    assert told.startswith("RuntimeError: no data set, in server_app.py, line 12")
    assert "set HF_HOME to it and HF_HUB_OFFLINE=1" in told


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "refused"), TimeoutError(), socket.gaierror(-2, "unknown name")],
)
def test_errors_of_networks_get_it_too(error: OSError, tmp_path: Path) -> None:
    assert "HF_HUB_OFFLINE=1" in error_of_app(error, tmp_path)
    assert "HF_HUB_OFFLINE=1" not in error_of_app(FileNotFoundError(2, "no such file"), tmp_path)
