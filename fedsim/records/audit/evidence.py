"""What the checks look at: the tables of a run folder as columns, each read once, when the first check wants it."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Ints
from fedsim.errors import RunFolderError
from fedsim.files import read_json
from fedsim.language.units import Bytes
from fedsim.meters.energy import SETTING
from fedsim.records import folder as files
from fedsim.records.audit.columns import Columns, Words
from fedsim.records.audit.events import Events
from fedsim.records.audit.transfers import PayloadKinds, Transfers
from fedsim.records.reading import RunFolder
from fedsim.records.schema import AVAILABILITY, DEVICES, ROUNDS

T = TypeVar("T")

_OF_DEVICES = ("device", "link_down", "link_up", "latency", "arrival", "departure", "selected", "group", "speed", "samples")
_OF_ROUNDS = ("time", "accuracy", "bytes_down", "bytes_up", "bytes_peer")


class Evidence:
    """A run folder as the checks see it.

    Attributes:
        run: the folder.
        words: the numbers of the names in all columns.
        payloads: the kinds of payloads of messages.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.words = Words()
        self.payloads = PayloadKinds()
        self._read: dict[str, Any] = {}

    @property
    def events(self) -> Events:
        """The records."""
        return self._once(files.EVENTS, lambda: Events(self.run, self.words, self.payloads))

    @property
    def transfers(self) -> Transfers:
        """The messages."""
        return self._once(files.TRANSFERS, lambda: Transfers(self.run, self.words, self.payloads))

    @property
    def devices(self) -> Columns:
        """The devices."""
        return self._once(files.DEVICES, lambda: Columns(self.run, files.DEVICES, DEVICES, _OF_DEVICES, self.words))

    def row_of(self, device: NDArray[np.integer]) -> Ints:
        """The row of each of these devices among ``devices``; -1 for one that has none; int64, as many."""
        numbers = self.devices["device"]
        if self.run.has_all_devices:
            return np.where((device >= 0) & (device < len(numbers)), device, -1).astype(np.int64)
        row = np.minimum(np.searchsorted(numbers, device), max(len(numbers) - 1, 0))
        return np.where(numbers[row] == device, row, -1) if len(numbers) else np.full(len(device), -1)

    @property
    def rounds(self) -> Columns:
        """Of the rounds, what is added up over them."""
        return self._once(files.ROUNDS, lambda: Columns(self.run, files.ROUNDS, ROUNDS, _OF_ROUNDS, self.words))

    @property
    def network(self) -> dict[str, Any] | None:
        """The links and routes that the run has left in the folder; None where it says none.

        Raises:
            RunFolderError: they are damaged.
        """

        return self._once(files.NETWORK, lambda: self._json(files.NETWORK) if self.run.has(files.NETWORK) else None)

    @property
    def cells(self) -> int:
        """How many cells there are, or places to which devices are attached."""
        network = self.run.scenario["network"]
        return network.get("cells", 0) if self.network is None else len(self.network["routes"]["down"])

    @property
    def energy_setting(self) -> dict[str, Any]:
        """What energy is counted by, besides what each device draws.

        Raises:
            RunFolderError: it is missing or damaged.
        """
        return self._once(SETTING, lambda: self._json(SETTING))

    @property
    def overhead(self) -> float:
        """Bytes on the wire for a byte of payload, by the scenario's protocol."""
        from pydantic import TypeAdapter

        usual = {"segment": "1 B", "header": "0 B"}  # what there was before there were protocols
        protocol = self.run.scenario["network"].get("protocol", usual)
        segment, header = (TypeAdapter[float](Bytes).validate_python(protocol[key]) for key in ("segment", "header"))
        return (segment + header) / segment

    @property
    def has_own_protocol(self) -> bool:
        """Whether the protocol is of the user's own, which may count bytes otherwise."""
        return ":" in self.run.scenario["network"].get("protocol", {"kind": "fluid"})["kind"]

    def _json(self, name: str) -> Any:
        try:
            return read_json(self.run.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{name} of {str(self.run.path)!r} is missing or damaged: {error}") from None

    @property
    def has_availability(self) -> bool:
        """Whether the folder says when devices could be reached; one of an older fedsim does not."""
        return self.run.has(files.AVAILABILITY)

    @property
    def availability(self) -> Columns:
        """When devices could be reached."""
        names = AVAILABILITY.names
        return self._once(files.AVAILABILITY, lambda: Columns(self.run, files.AVAILABILITY, AVAILABILITY, names, self.words))

    def _once(self, name: str, read: Callable[[], T]) -> T:
        """Read a table when it is first asked for. One that is damaged is not read again for each check."""
        if name not in self._read:
            try:
                self._read[name] = read()
            except RunFolderError as error:
                self._read[name] = error
        found = self._read[name]
        if isinstance(found, RunFolderError):
            raise found
        return found  # type: ignore[no-any-return]
