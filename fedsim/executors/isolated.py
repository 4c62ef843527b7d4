"""Python processes that import nothing from the working directory, whatever lies there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedsim.language.imports import places

_CODE = """import sys
sys.path[:] = {path!r}
from fedsim.language.imports import learn
learn({places!r})
from {module} import {name}
{name}()"""


def start(module: str, name: str, *words: str, **options: Any) -> "subprocess.Popen[Any]":
    """Start a fresh Python that calls a function of fedsim's, in a session of its own.

    It searches for modules where this process does, but for the working directory, and knows the code that was allowed here.
    Unlike the processes of ``multiprocessing`` it does not run the user's program again. The function takes nothing; ``words``
    are its command line, ``options`` those of ``subprocess.Popen``.
    """
    here, home = Path.cwd().resolve(), str(Path(__file__).absolute().parents[2])
    places_now = list(sys.path)  # at once: another thread may change it meanwhile, as a Flower app in use does
    path = [place for place in places_now if Path(place).is_absolute() and Path(place).resolve() != here]
    code = _CODE.format(path=[*path, home], places=places(), module=module, name=name)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)
