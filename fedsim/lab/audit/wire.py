"""Checks that each message has the size of its models and values, as the codecs encode them."""

import math
from collections.abc import Iterator
from functools import cached_property

from fedsim.common.streams import Streams
from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import Evidence, TomlTable
from fedsim.lab.audit.frames import NOTHING, read_quantity
from fedsim.lab.audit.layout import (
    Tensors,
    coded_bytes,
    count_adapter_parameters,
    count_parameters,
    count_reduced_parameters,
    count_sent_parameters,
    dense_tensors,
    saved_tensors,
)
from fedsim.lab.audit.strategies import PEERS

_ROUNDING = 1e-9
_NUMBER_BYTES = 4
_PLAIN_CODEC = {"kind": "plain", "dtype": "float32"}
_ONE_MODEL = (
    "model",
    "update",
    "unchanged-model",
    "edge-model",
    "edge-update",
    "ask",
    "answer",
    "pre-training",
    "initial-model",
    "warm-up",
    "profiling",
    "control-variate",
    "gradient",
    "group-exchange",
)
"""Purposes of message parts with one model, or with the parameters that devices send of it."""

_SEVERAL_MODELS = ("exchange", "directions", "migration", "cold-start", "loss-query")
"""Purposes of message parts with one or more models."""

_NUMBERS = {"id": 1, "training-loss": 1, "test-accuracy": 1, "declined": 1, "resources": 3}
"""Dict from purpose of a message part to its fixed count of 4-byte values."""

_LISTS = ("size-report", "loss", "probe-loss", "control", "class-counts", "subspace")
"""Purposes of message parts with any count of 4-byte values."""

_TO_ALL_GROUPS = ("ifca", "ifca-mig", "hypcluster")
"""Strategies whose clients receive the models of all groups."""

_REDUCTION_OF_STRATEGY = {"heterofl": "width", "hetlora": "rank", "flora": "adapters"}
"""Dict from strategy with smaller models on some devices to the quantity that it reduces."""

_STATE_VALUES = {"Adam": 2, "AdamW": 2}
"""Dict from torch optimiser to the count of values in its state per model parameter.

The state also has one step count per tensor.
"""


def check_message_sizes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each part of a message with a wrong size.

    The size has to follow from the model and from the scenario's compression of messages. A part is
    what is sent for one purpose, such as ``update``. User code and Flower apps, which choose their
    own purposes, are not checked.
    """
    strategy = evidence.run.scenario["strategy"]["kind"]
    if ":" in strategy or strategy == "flower":
        return
    sizes = MessageSizes(evidence)
    transfers = evidence.transfers
    # The strategy has sent a message between devices if the strategy is one of ``PEERS`` and the
    # message has a round. All other messages between devices are from processes.
    of_strategy = transfers["direction"] != "peer"
    if strategy in PEERS:
        of_strategy |= transfers["round"] != NOTHING
    keys = ["direction", "payloads"]
    if sizes.reduction is not None:
        keys += ["device", "round"]
    distinct = transfers[of_strategy].drop_duplicates(keys)
    distinct = distinct[["direction", "payloads", "device", "round"]]
    payload_lists = evidence.payloads.lists
    for row, direction, list_index, device, round_number in distinct.itertuples(name=None):
        for purpose, size in payload_lists[list_index]:
            problem = sizes.find_problem(direction, purpose, size, device, round_number)
            if problem is not None:
                yield f"transfer {row}: {size!r} bytes of {purpose!r} went {direction}; {problem}"


class MessageSizes:
    """Sizes (bytes) that a run's messages may have, by the scenario and the saved models.

    A message has a part for each purpose, such as ``update``; ``find_problem`` checks the size of
    a part.

    Args:
        evidence: the run folder.

    Attributes:
        reduction: kind of reduction of models on some devices (``width``, ``rank`` or
            ``adapters``); None if all devices have the whole model.
    """

    def __init__(self, evidence: Evidence) -> None:
        scenario = evidence.run.scenario
        self._evidence = evidence
        self._scenario = scenario
        self._strategy: TomlTable = scenario["strategy"]
        self._codecs = scenario.get("messages", {})
        # the draws of reduced sizes are repeated from these streams
        self._streams = Streams(scenario["seed"])
        self.reduction = _REDUCTION_OF_STRATEGY.get(self._strategy["kind"])

    @cached_property
    def _scenario_tensors(self) -> tuple[Tensors, Tensors] | None:
        """Trained and frozen tensors by the scenario; None if it does not determine them."""
        return dense_tensors(self._scenario)

    @cached_property
    def _trained_tensors(self) -> Tensors | None:
        """Shapes of the model's trained tensors, by name.

        They are taken from a model that the run saved or, if there is none, computed from the
        scenario. None if that is not possible either.
        """
        tensors = saved_tensors(self._evidence)
        if tensors is None and self._scenario_tensors is not None:
            tensors = self._scenario_tensors[0]
        return tensors

    @cached_property
    def _parameter_count(self) -> int | None:
        """Count of the whole model's trained parameters; None if it is not known.

        The count is known from ``_trained_tensors``, or from the size (bytes) in a scenario whose
        model is only a size. Devices may send fewer parameters (``_sent_count``).
        """
        if self._trained_tensors is not None:
            return count_parameters(self._trained_tensors)
        model = self._scenario.get("model", {})
        if model.get("kind") == "size":
            size: float = read_quantity(Bytes, model["bytes"])
            return round(size / _NUMBER_BYTES)
        return None

    @cached_property
    def _sent_count(self) -> int | None:
        """Count of the whole model's parameters that devices send; None if it is not known.

        Personal parameters are not sent.
        """
        if self._trained_tensors is None:
            return self._parameter_count
        return count_sent_parameters(self._scenario, self._trained_tensors)

    def find_problem(
        self, direction: str, purpose: str, size: float, device: int, round_number: int
    ) -> str | None:
        """Return the reason why a part of a message cannot have a given size; None if it can.

        Args:
            direction: direction of the message: ``down``, ``up`` or ``peer``.
            purpose: purpose of the part, such as ``update``.
            size: size of the part (bytes).
            device: ID of the device that sends or receives the message.
            round_number: index of the message's round.
        """
        if purpose in _NUMBERS:
            count = _NUMBERS[purpose]
            return _compare_sizes(size, count * _NUMBER_BYTES, f"the size of {count} numbers is")
        if purpose in _LISTS:
            if size > 0 and size % _NUMBER_BYTES == 0:
                return None
            return f"numbers have {_NUMBER_BYTES} bytes each"
        if purpose == "base":
            return self._check_base(size)
        if purpose == "optimiser":
            return self._check_state(size)
        if purpose in _ONE_MODEL or purpose in _SEVERAL_MODELS:
            return self._check_models(direction, purpose, size, device, round_number)
        return None

    def _check_base(self, size: float) -> str | None:
        """Return the reason why the model's frozen tensors cannot have ``size`` bytes, or None."""
        if self._scenario_tensors is None:
            return None
        expected = _NUMBER_BYTES * count_parameters(self._scenario_tensors[1])
        return _compare_sizes(size, expected, "the size of the frozen tensors is")

    def _check_state(self, size: float) -> str | None:
        """Return the reason why an optimiser's state cannot have ``size`` bytes, or None."""
        training = self._scenario.get("training", {})
        optimizer = training.get("optimizer", training.get("optimiser", ""))
        values_per_parameter = _STATE_VALUES.get(optimizer)
        if values_per_parameter is None or self._trained_tensors is None:
            return None
        expected = _NUMBER_BYTES * (
            values_per_parameter * count_parameters(self._trained_tensors)
            + len(self._trained_tensors)
        )
        return _compare_sizes(size, expected, f"the size of {optimizer}'s state is")

    def _check_models(
        self, direction: str, purpose: str, size: float, device: int, round_number: int
    ) -> str | None:
        """Return the reason why a message part with models cannot have a size; None if it can.

        Args:
            direction: direction of the message.
            purpose: purpose of the part, which determines how many models it has.
            size: size of the part (bytes).
            device: ID of the device, which may have a reduced model.
            round_number: index of the round.
        """
        # messages between devices are encoded as messages to the server
        section = "down" if direction == "down" else "up"
        codec = self._codecs.get(section, _PLAIN_CODEC)
        if self._parameter_count is None or ":" in codec["kind"]:
            return None
        counts = self._parameter_counts(purpose, device, round_number)
        if counts is None:
            return None
        if purpose == "model" and self.reduction == "adapters":
            return self._check_adapters(size)
        model_sizes = _coded_sizes(codec, counts, self._parameter_count)
        models = self._model_count(purpose)
        is_possible = any(_is_multiple(size, model_bytes, models) for model_bytes in model_sizes)
        if is_possible or not model_sizes:
            return None
        expected = " or ".join(f"{model_bytes:g}" for model_bytes in sorted(model_sizes))
        if models != 1:
            factor = "some" if models is None else models
            expected = f"{factor} times {expected}"
        return f"the codec {codec['kind']!r} makes {expected} of it"

    def _model_count(self, purpose: str) -> int | None:
        """Return the count of models in a message part; None if any count is allowed."""
        to_all_groups = purpose == "model" and self._strategy["kind"] in _TO_ALL_GROUPS
        if purpose in ("directions", "migration") or to_all_groups:
            groups: int = self._strategy["groups"]
            return groups
        return 1 if purpose in _ONE_MODEL else None

    def _parameter_counts(self, purpose: str, device: int, round_number: int) -> list[int] | None:
        """Return the counts of parameters that a model in a message may have.

        Args:
            purpose: purpose of the message part.
            device: ID of the device, which may have a reduced model.
            round_number: index of the round.

        Returns:
            The counts; None if the folder does not determine them.
        """
        if purpose == "loss-query":  # has whole models, or the parts that clients send
            candidates = (self._parameter_count, self._sent_count)
            return [count for count in candidates if count is not None]
        if self.reduction is None:
            return None if self._sent_count is None else [self._sent_count]
        if self._trained_tensors is None:
            return None
        counts = []
        for size in self._reduced_sizes(device, round_number):
            count = self._count_reduced(self._trained_tensors, self.reduction, size)
            if count is None:
                return None
            counts.append(count)
        return counts

    @staticmethod
    def _count_reduced(tensors: Tensors, reduction: str, size: float) -> int | None:
        """Count the parameters that a device with a reduced model sends; None if not known.

        Args:
            tensors: shapes of the whole model's tensors.
            reduction: kind of reduction; with ``adapters``, only LoRA adapters are sent.
            size: share of the width (0..1), or rank of the adapters.
        """
        if reduction == "adapters":
            return count_adapter_parameters(tensors, size)
        return count_reduced_parameters(tensors, reduction, size)

    def _reduced_sizes(self, device: int, round_number: int) -> list[float]:
        """Return the sizes that the reduced model of a device may have in a round.

        Sizes are shares of the width (0..1), or ranks. If the strategy draws each device's size
        from a list, the draw is repeated, and the result has this size only.

        Args:
            device: ID of the device.
            round_number: index of the round, for which a size may be drawn anew.
        """
        sizes = self._strategy["sizes"]
        if isinstance(sizes, dict):  # sizes by kind of device; the folder does not have the kinds
            return [*sizes.values()]
        # the strategy's draw is repeated, which needs the same options in the same order
        if self._strategy["redraw"]:
            options = sorted(set(sizes))
            generator = self._streams.generator("strategy/size", device, round_number)
        else:
            options = sizes
            generator = self._streams.generator("strategy/size", device)
        return [options[int(generator.integers(len(options)))]]

    def _check_adapters(self, size: float) -> str | None:
        """Return the reason why FLoRA cannot send a part of ``size`` bytes; None if it can.

        FLoRA sends either the whole model or the low-rank adapters of some clients.
        """
        assert self._trained_tensors is not None
        assert self._parameter_count is not None
        sizes = self._strategy["sizes"]
        ranks = sizes.values() if isinstance(sizes, dict) else sizes
        counts = [count_adapter_parameters(self._trained_tensors, rank) for rank in ranks]
        # A part has the adapters of several clients with any of these ranks. So its size is a
        # multiple of the greatest common divisor of the adapters' sizes.
        unit = _NUMBER_BYTES * math.gcd(*counts)
        model_bytes = _NUMBER_BYTES * self._parameter_count
        if size == model_bytes or (size <= model_bytes and size % unit == 0):
            return None
        return f"the model has {model_bytes}, and adapters multiples of {unit}"


def _coded_sizes(codec: TomlTable, counts: list[int], model_parameters: int) -> set[float]:
    """Return the sizes (bytes) that a model with one of several counts of parameters may have.

    Args:
        codec: the scenario's section of the compression.
        counts: counts of the parameters that may be sent.
        model_parameters: count of the parameters of the whole model.
    """
    sizes = {coded_bytes(codec, count, model_parameters) for count in counts}
    return {size for size in sizes if size is not None}


def _compare_sizes(size: float, expected: int, subject: str) -> str | None:
    return None if size == expected else f"{subject} {expected}"


def _is_multiple(size: float, unit: float, factor: int | None) -> bool:
    """Whether a size equals ``factor * unit``, up to rounding.

    If ``factor`` is None, any whole multiple of the unit will do, the unit itself included.
    """
    ratio = size / unit if unit else math.nan
    if factor is None:
        factor = max(1, round(ratio))
    return math.isclose(ratio, factor, rel_tol=_ROUNDING)
