"""Client selection: whom a round asks."""

from typing import Annotated, Any

from pydantic import SerializeAsAny

from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.language.families import Family
from fedsim.language.spec import Spec

_HERE = "fedsim.strategies.parts.selection"
SELECTIONS = Family(
    "selection",
    f"{_HERE}:Selection",
    {
        "random": (f"{_HERE}.random:Random", "clients uniformly at random"),
        "least-asked": (
            "fedsim.strategies.parts.selection.least_asked:LeastAsked",
            "clients that were asked least often first",
        ),
    },
)


class Selection(Spec):
    """The base of every client selection. What it must remember is in ``state``, JSON-able, one dict for the whole run."""

    kind: str

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        """Whom to ask in a round: at most ``count`` devices that are there and idle (``Server.sample``, ``Server.online``).

        Called when a round opens; again, with the same number, if there was nobody.

        Args:
            server: what the server half may call.
            state: what it remembers.
            count: how many are wanted.
            ids: the number of the round (from 0), and more where one round selects several times: they name the stream.
            among: devices to choose from; None for all.
        """
        raise NotImplementedError

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        """A task of the round has ended, in whatever way; called before its update is used."""


SelectionSpec = Annotated[SerializeAsAny[Selection], SELECTIONS.validator]
