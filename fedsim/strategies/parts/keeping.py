"""Kept tensors: tensors that never leave a device, which trains them with the received tensors."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedsim.common.errors import ScenarioError
from fedsim.common.training import Places, complement, places_of
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Partial,
    Server,
)
from fedsim.learning.architecture import Tensor
from fedsim.learning.functions import spliced, taken
from fedsim.learning.refs import Ref
from fedsim.strategies.parts import PartClient
from fedsim.world.steps import TaskStep


class Split(NamedTuple):
    """Division of a model's parameters: some are sent, the rest stays on devices.

    Attributes:
        sent: ranges (begin, end) of the sent parameters in the flat array of all parameters.
        kept: ranges of the parameters that stay on each device.
    """

    sent: Places
    kept: Places

    @classmethod
    def of(cls, tensors: Sequence[Tensor], stays: Sequence[bool], key: str) -> "Split":
        """Divide a model's parameters by whether their tensor stays on the devices.

        Args:
            tensors: the tensors of the model, in order.
            stays: whether each tensor stays on the devices.
            key: the scenario's key that determines ``stays``, with its value, for messages.

        Raises:
            ScenarioError: all tensors stay, or no tensor stays.
        """
        names = ", ".join(tensor.name for tensor in tensors)
        if all(stays):
            raise ScenarioError(
                f"{key}, and every tensor of the model stays on its device: {names}; allowed is "
                "what leaves something to send, with a model of more layers"
            )
        if not any(stays):
            raise ScenarioError(
                f"{key}, and no tensor of the model stays on its device: all of {names} are "
                "sent; leave it out"
            )
        kept_ranges = []
        begin = 0  # index of the tensor's first parameter in the flat array
        for tensor, is_kept in zip(tensors, stays, strict=True):
            end = begin + tensor.size
            if is_kept:
                kept_ranges.append((begin, end))
            begin = end
        kept = places_of(kept_ranges)
        return cls(complement(kept, size=begin), kept)


class ServerKeeping:
    """Server's part of strategies in which some tensors of the model stay on devices.

    Its methods cut out the part of a model that is sent, and assemble the whole model of each
    device.

    Args:
        split: the ranges that are sent, and the ranges that stay.
        server: API of the strategy's server code, with ``models`` for arithmetic.
    """

    def __init__(self, split: Split, server: Server) -> None:
        self._split = split
        self._apply = server.models.apply

    def sent(self, model: Ref) -> Partial:
        """Return the part of a model that is sent: all but the tensors that stay on devices."""
        return Partial(model, model, self._split.sent)

    def restore(self, before: Ref, model: Ref) -> Ref:
        """Return a copy of a model in which the tensors that stay on devices are replaced.

        Args:
            before: the model from which these tensors are taken.
            model: the model that is copied.
        """
        return self._apply(spliced, [before, model], places=self._split.sent)

    def device_models(self, model: Ref, kept: Mapping[int, Ref]) -> dict[int, Ref]:
        """Return the whole model of each device: the global model with the device's kept tensors.

        Args:
            model: the global model [d].
            kept: device -> its kept tensors.

        Returns:
            Device -> its model [d].
        """
        models = {}
        for device, tensors in kept.items():
            models[device] = self._apply(spliced, [model, tensors], places=self._split.kept)
        return models


class KeepingClient(PartClient):
    """Client's part of strategies in which some tensors of the model stay on the device.

    The client trains the kept tensors together with the received ones, and does not send the kept
    ones. The kept tensors are the entry ``kept`` of the device's state.
    """

    jobs = ()
    _part: Split

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        contents = {**instruction.contents, "model": self._whole(device, instruction)}
        whole = Instruction(instruction.job, contents, instruction.round, instruction.value)
        return self._client.work(device, whole)

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        assert result.update is not None
        update = device.splice(instruction["model"], result.update, self._part.sent)
        part = result._replace(update=update, start=instruction["model"])
        return self._client.computed(device, instruction, part)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return the strategy's reply, in which the update has only the tensors that are sent.

        ``kept``, the remaining tensors, is a header: it costs no bytes, as it stays on the device.
        """
        reply = self._client.reply(device, instruction, result) or {}
        split = self._part  # ranges of the sent parameters, and of the kept parameters
        assert result.update is not None
        assert result.trained is not None
        # ``taken`` reads the kept tensors from the first model, or from the second if the first has
        # diverged
        models = [result.trained, self._whole(device, instruction)]
        kept_size = sum(end - begin for begin, end in split.kept)
        kept = device.apply(taken, models, places=split.kept, size=kept_size)
        # the server completes the update by the tensors of the model that it has sent
        update = Partial(result.update, instruction["model"], split.sent)
        return {**reply, "update": update, "kept": Header(kept)}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        super().on_sent(device, instruction, reply)
        device.state["kept"] = reply["kept"].value

    def _whole(self, device: Device, instruction: Instruction) -> Ref:
        """Return the whole model: the received tensors, and the tensors that stay on the device."""
        model: Ref = instruction["model"]
        if "kept" not in device.state:
            return model
        return device.splice(model, device.state["kept"], self._part.kept)
