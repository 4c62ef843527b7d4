"""What scripts here share: their arguments, runs in processes of their own, and two runs compared."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_MAIN = "from fedsim.cli import main; main()"


def parser(doc: str | None, **defaults: float | bool) -> argparse.ArgumentParser:
    """Arguments of a script: an option for each default, of its type."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if isinstance(default, bool):
            made.add_argument(f"--{name}", action="store_true")
        else:
            made.add_argument(f"--{name}", type=type(default), default=default)
    return made


def start(*words: str | Path, **how: Any) -> "subprocess.Popen[Any]":
    """``fedsim WORDS`` in a process of its own; ``how`` is for ``subprocess.Popen``."""
    return subprocess.Popen([sys.executable, "-c", _MAIN, *map(str, words)], **how)


def agree(one: Path, other: Path) -> bool:
    """Whether two run folders have the same events and models."""
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    return all(summaries[0][name] == summaries[1][name] for name in ("events_sha256", "models_sha256"))
