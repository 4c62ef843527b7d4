"""Error messages of the command lines: one message, an exit status, and no traceback."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fedsim.common.errors import (
    FedsimError,
    SimulationError,
    is_full,
    on_command_line,
    place_of,
    told,
)
from fedsim.common.harmless import say

INTERRUPTED = 130
_NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP)  # names that no file can have


def explained(program: str) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Turns errors of a command into one message and an exit status; refuses ``out`` within a
    run folder if it reads runs.
    """

    def wrap(command: Callable[..., int | None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: Any, debug: bool, **options: Any) -> None:
            def complain(message: str) -> None:
                say(
                    *(traceback.format_exc().split("\n") if debug else [f"{program}: {message}"]),
                    err=True,
                )

            status = 1
            reader = on_command_line.set(True)
            try:
                with _reading(options):
                    status = command(*args, **options) or 0
            except FedsimError as error:
                complain(
                    str(error) + (place_of(error) if isinstance(error, SimulationError) else "")
                )
                status = error.exit_status
            except KeyboardInterrupt:
                status = INTERRUPTED
            except BrokenPipeError:  # the reader has ended (``| head``)
                # so that Python does not flush the rest
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except OSError as error:
                complain(told(error, options.get("out")))
                status = 2 if error.errno in _NO_NAME else 1
            except MemoryError as error:
                complain(f"there is not enough memory: {error}".rstrip(": "))
            except Exception as error:
                message = told(error, options.get("out"))
                complain(
                    message
                    if is_full(error)
                    else f"{message}{place_of(error)} (--debug shows where)"
                )
            finally:
                on_command_line.reset(reader)
            sys.exit(status)

        return click.option("--debug", is_flag=True, help="Show a traceback when something fails.")(
            run
        )

    return wrap


def _reading(options: Mapping[str, Any]) -> AbstractContextManager[None]:
    runs: Collection[Path] = options.get("runs", [options["run"]] if "run" in options else [])
    if not runs:
        return nullcontext()
    from fedsim.records.folder import refuse_within_run
    from fedsim.records.reading import making_sense

    if options.get("out") is not None:
        refuse_within_run(Path(options["out"]))
    return making_sense(runs)
