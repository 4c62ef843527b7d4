"""Are the bytes of each message those of the models, parts and numbers in it, as the scenario's
codecs write them?
"""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from fedsim.common.streams import Streams
from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import NOTHING, PEERS, Evidence, read
from fedsim.lab.audit.layout import (
    Tensors,
    adapter_numbers,
    coded_bytes,
    cut_numbers,
    dense_tensors,
    left_tensors,
    numbers,
    sent_numbers,
)

_ROUNDING = 1e-9
_NUMBER_BYTES = 4
_ONE_MODEL = (
    *("model", "update", "unchanged-model", "edge-model", "edge-update", "ask", "answer"),
    *(
        "pre-training",
        "initial-model",
        "warm-up",
        "profiling",
        "control-variate",
        "gradient",
        "group-exchange",
    ),
)
"""Purposes of which each message has one model, whole or what of it leaves a device."""

_MODELS = ("exchange", "directions", "migration", "cold-start", "loss-query")
"""Purposes of which a message has one model or several."""

_NUMBERS = {"id": 1, "training-loss": 1, "test-accuracy": 1, "declined": 1, "resources": 3}
_LISTS = ("size-report", "loss", "probe-loss", "control", "class-counts")
"""Purposes of numbers: so many, or any."""


_TO_ALL_GROUPS = ("ifca", "ifca-mig", "hypcluster")
"""Strategies whose clients receive the models of all groups."""

_CUT = {"heterofl": "width", "hetlora": "rank", "flora": "adapters"}
"""Strategies whose devices have smaller models, and by what they are smaller."""

_STATES = {"Adam": 2, "AdamW": 2}
"""Optimisers of torch, and how many numbers each keeps for a number of the model, beside a count
a tensor.
"""


def bytes_as_said(evidence: Evidence) -> Iterator[str]:
    """Each part of a message has the bytes that parameters, parts and codec give it."""
    scenario = evidence.run.scenario
    if ":" in scenario["strategy"]["kind"] or scenario["strategy"]["kind"] == "flower":
        return  # the purposes of its messages are its own
    sizes = MessageSizes(evidence)
    keys = (
        ["direction", "payloads"]
        if sizes.by is None
        else ["direction", "payloads", "device", "round"]
    )
    transfers = evidence.transfers
    among_peers = (transfers["round"] != NOTHING) & (scenario["strategy"]["kind"] in PEERS)
    of_strategy = (transfers["direction"] != "peer") | among_peers  # others are of processes
    distinct = transfers[of_strategy].drop_duplicates(keys)
    lists = [*evidence.payloads]
    columns = (distinct[name].tolist() for name in ("direction", "payloads", "device", "round"))
    for row, way, code, device, number in zip(distinct.index.tolist(), *columns, strict=True):
        for purpose, size in lists[code]:
            if (due := sizes.due(way, purpose, size, device, number)) is not None:
                yield f"transfer {row}: {size!r} bytes of {purpose!r} went {way}; {due}"


class MessageSizes:
    """The bytes that messages of a run may have."""

    def __init__(self, evidence: Evidence) -> None:
        scenario = evidence.run.scenario
        self._evidence = evidence
        self._scenario = scenario
        self._strategy: Mapping[str, Any] = scenario["strategy"]
        self._codecs = scenario.get("messages", {})
        self._streams = Streams(scenario["seed"])
        self.by = _CUT.get(self._strategy["kind"])

    @cached_property
    def _expected(self) -> tuple[Tensors, Tensors] | None:
        return dense_tensors(self._scenario)

    @cached_property
    def _tensors(self) -> Tensors | None:
        """The trained tensors, as the run has left them, or as the scenario says where it has
        left none.
        """
        left = left_tensors(self._evidence)
        expected = None if self._expected is None else self._expected[0]
        return expected if left is None else left

    @cached_property
    def _whole(self) -> int | None:
        """Numbers of a model; where nothing tells them, those of the first model on the way
        down.
        """
        if self._tensors is not None:
            return numbers(self._tensors)
        model = self._scenario.get("model", {})
        if model.get("kind") == "size":
            size: float = read(Bytes, model["bytes"])
            return round(size / _NUMBER_BYTES)
        return None

    @cached_property
    def _sent(self) -> int | None:
        """Numbers of a model that leave a device."""
        if self._tensors is None:
            return self._whole
        return sent_numbers(self._scenario, self._tensors)

    def due(
        self, direction: str, purpose: str, size: float, device: int, number: int
    ) -> str | None:
        """Why a part of a message cannot have this size; None if it can."""
        if purpose in _NUMBERS or purpose in _LISTS:
            return self._of_numbers(purpose, size)
        if purpose == "base":
            return self._of_base(size)
        if purpose == "optimiser":
            return self._of_state(size)
        if purpose in _ONE_MODEL or purpose in _MODELS:
            return self._of_models(direction, purpose, size, device, number)
        return None

    def _of_numbers(self, purpose: str, size: float) -> str | None:
        count = _NUMBERS.get(purpose)
        if count is None:
            return (
                None
                if size > 0 and size % _NUMBER_BYTES == 0
                else f"numbers have {_NUMBER_BYTES} bytes each"
            )
        due = count * _NUMBER_BYTES
        return None if size == due else f"{count} numbers have {due}"

    def _of_base(self, size: float) -> str | None:
        if self._expected is None:
            return None
        due = _NUMBER_BYTES * numbers(self._expected[1])
        return None if size == due else f"the frozen tensors have {due}"

    def _of_state(self, size: float) -> str | None:
        training = self._scenario.get("training", {})
        each = _STATES.get(training.get("optimiser", ""))
        if each is None or self._tensors is None:
            return None
        due = _NUMBER_BYTES * (each * numbers(self._tensors) + len(self._tensors))
        return None if size == due else f"the state of {training['optimiser']} has {due}"

    def _of_models(
        self, direction: str, purpose: str, size: float, device: int, number: int
    ) -> str | None:
        codec = self._codecs.get(
            "down" if direction == "down" else "up", {"kind": "plain", "dtype": "float32"}
        )
        if self._whole is None or ":" in codec["kind"]:
            return None
        counts = self._counts(direction, purpose, device, number)
        if counts is None:
            return None
        if purpose == "model" and self.by == "adapters":
            return self._of_stacks(size)
        units = {
            unit for count in counts if (unit := coded_bytes(codec, count, self._whole)) is not None
        }
        if not units:
            return None
        times = self._times(purpose)
        for unit in units:
            models = size / unit if unit else math.nan
            if any(
                math.isclose(models, count, rel_tol=_ROUNDING)
                for count in times or [max(1, round(models))]
            ):
                return None
        many = "" if times == [1] else f"{times[0]} times " if times else "some times "
        return (
            f"the codec {codec['kind']!r} makes "
            f"{many}{' or '.join(f'{unit:g}' for unit in sorted(units))} of it"
        )

    def _times(self, purpose: str) -> list[int]:
        """Counts of models that a message may have; empty for any number."""
        of_all_groups = purpose == "model" and self._strategy["kind"] in _TO_ALL_GROUPS
        if purpose in ("directions", "migration") or of_all_groups:
            return [self._strategy["groups"]]
        return [1] if purpose in _ONE_MODEL else []

    def _counts(self, direction: str, purpose: str, device: int, number: int) -> list[int] | None:
        """Numbers that a model of a message may have; None where that is not known."""
        if purpose == "loss-query":
            return [count for count in (self._whole, self._sent) if count is not None]
        if self.by is None:
            return None if self._sent is None else [self._sent]
        if self._tensors is None:
            return None
        count_of = adapter_numbers if self.by == "adapters" else self._cut
        found = [count_of(self._tensors, size) for size in self._sizes(device, number)]
        return None if None in found else [count for count in found if count is not None]

    def _cut(self, tensors: Tensors, size: float) -> int | None:
        assert self.by is not None
        return cut_numbers(tensors, self.by, size)

    def _sizes(self, device: int, number: int) -> list[float]:
        """The sizes that a device's model may have in a round: of a list the one that its stream
        draws.
        """
        sizes = self._strategy["sizes"]
        if isinstance(sizes, dict):
            return [*sizes.values()]
        redraws = self._strategy["redraw"]
        able = sorted(set(sizes)) if redraws else sizes
        generator = self._streams.generator("strategy/size", device, *([number] if redraws else []))
        return [able[int(generator.integers(len(able)))]]

    def _of_stacks(self, size: float) -> str | None:
        """FLoRA sends the whole model, or the adapters of some clients."""
        assert self._tensors is not None
        assert self._whole is not None
        sizes = self._strategy["sizes"]
        ranks = sizes.values() if isinstance(sizes, dict) else sizes
        grain = _NUMBER_BYTES * math.gcd(*(adapter_numbers(self._tensors, rank) for rank in ranks))
        whole = _NUMBER_BYTES * self._whole
        if size == whole or (size <= whole and size % grain == 0):
            return None
        return f"the model has {whole}, and adapters multiples of {grain}"
