"""Output of commands (verbs): every result is printed here, as text or as JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from fedsim.common.errors import key_of, nearest_of
from fedsim.common.harmless import say
from fedsim.running.mistakes import Mistake, explained, say_mistake

if TYPE_CHECKING:
    from fedsim.cli.results.parts import VerbResult

Verb = TypeVar("Verb", bound=Callable[..., object])

_JSON = "fedsim.json"
_QUIET = "fedsim.quiet"


@dataclass(frozen=True)
class VerbOutcome:
    """Outcome of a command (verb) of ``fedsim``, to print as JSON or as text.

    Attributes:
        make_result: function that returns the result object, which ``--json`` prints.
        print_text: function that prints the result as text for people.
        status: the exit code.
        complaints: lines about failures. With ``--quiet`` they are printed to stderr, in place of
            ``print_text``. Without it they are not printed, so ``print_text`` must name the
            failures itself.
    """

    make_result: Callable[[], "VerbResult"]
    print_text: Callable[[], None]
    status: int = 0
    complaints: tuple[str, ...] = ()


def _flag(name: str, key: str, text: str) -> Callable[[Verb], Verb]:
    """Return a decorator that adds a flag to a command.

    The flag's value is stored in click's context, not passed to the command's function.

    Args:
        name: name of the flag, such as ``--json``.
        key: key of the value in ``context.meta``.
        text: help text of the flag.
    """

    def store(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[key] = value

    return click.option(
        name, is_flag=True, expose_value=False, is_eager=True, callback=store, help=text
    )


_json_option = _flag(
    "--json", _JSON, "Print one JSON object to stdout; 'fedsim schema output' describes it."
)
_quiet_option = _flag("--quiet", _QUIET, "Print nothing but errors.")


def reported(command: Callable[..., VerbOutcome]) -> Callable[..., None]:
    """Decorate the function of a command, so that the command prints the outcome that it returns.

    The command also gets the options ``--json``, ``--quiet`` and ``--debug``.
    """

    @wraps(command)
    def run(*args: object, **options: object) -> int:
        outcome = command(*args, **options)
        if prints_json():
            say(_as_json(outcome.make_result()))
        elif is_quiet():
            say(*outcome.complaints, err=True)
        else:
            outcome.print_text()
        return outcome.status

    return explained("fedsim", _report)(_json_option(_quiet_option(run)))


def show_nothing() -> None:
    """Print nothing: the ``print_text`` of an outcome that has no text."""
    return


def is_quiet() -> bool:
    """Whether the current command was called with ``--quiet``."""
    return _is_on(_QUIET)


def prints_json() -> bool:
    """Whether the current command was called with ``--json``."""
    return _is_on(_JSON)


def _is_on(key: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(key))


def _report(mistake: Mistake) -> None:
    """Print the error that has ended a command: as text, or as a JSON object with ``--json``."""
    if not prints_json():
        say_mistake(mistake)
        return
    if mistake.trace:
        say_mistake(mistake)
    verb = click.get_current_context().info_name
    message = mistake.message
    if not message:
        message = "interrupted"
    _print_error(verb, message, key_of(message), nearest_of(message), mistake.status)


def print_usage_error(error: click.UsageError, message: str) -> None:
    """Print an error in a command's arguments as a JSON object.

    The object also has the option or argument at fault, and a similar option if there is one.

    Args:
        error: click's error.
        message: message to print instead of the message in ``error``.
    """
    key = None
    nearest = None
    if isinstance(error, click.NoSuchOption):
        key = error.option_name
        nearest = next(iter(error.possibilities or ()), None)
    elif isinstance(error, click.BadParameter) and error.param is not None:
        key = error.param.opts[0]
    verb = None
    if error.ctx is not None and error.ctx.parent is not None:
        verb = error.ctx.info_name
    _print_error(verb, message, key, nearest, error.exit_code)


def _print_error(
    verb: str | None, message: str, key: str | None, nearest: str | None, status: int
) -> None:
    from fedsim.cli.results.error import ErrorDetails, ErrorResult

    details = ErrorDetails(message=message, key=key, nearest=nearest, exit_code=status)
    say(_as_json(ErrorResult(verb=verb, error=details)))


def _as_json(result: "VerbResult") -> str:
    """Convert a result to JSON text in ASCII; numbers that are not finite become null."""
    return json.dumps(json.loads(result.model_dump_json()), allow_nan=False)
