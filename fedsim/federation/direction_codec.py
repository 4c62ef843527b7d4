"""Encoding and decoding of the models of messages in one direction."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from fedsim.common.saved import saved
from fedsim.federation.codecs import Codec
from fedsim.federation.contents import Contents, Partial
from fedsim.learning import Learner, Ref
from fedsim.learning.functions import spliced, taken
from fedsim.world.steps import Code


@saved()
class CodedContents(NamedTuple):
    """Contents of a message as its receiver decodes them, with the residuals of their encoding.

    Attributes:
        arriving: the decoded contents by name.
        residuals: name of a content -> residual of the codec, the part that encoding has left out.
            The sender stores it if the message arrives; a device does so in
            ``ClientSide.on_answer_arrived``. A content of several models has no residual.
    """

    arriving: Contents
    residuals: Mapping[str, Ref]


class _CodedContent(NamedTuple):
    """Content as the receiver decodes it, and the residual that the sender stores, or None."""

    received: object
    residual: Ref | None = None


class DirectionCodec:
    """Encodes and decodes the models in messages of one direction: to devices, or from devices.

    Args:
        codec: the codec that the scenario names for the direction, ``messages.down`` or
            ``messages.up``.
        learner: creates references to the decoded models, and computes them.

    Attributes:
        model_bytes: size of an encoded model (bytes).
        model_s: time in which a device encodes or decodes a model (s).
    """

    def __init__(self, codec: Codec, learner: Learner) -> None:
        self._codec = codec
        self._learner = learner
        self._parameters = int(learner.parameters)
        self._is_lossless = codec.is_lossless
        self.model_bytes = codec.bytes(learner.parameters)
        self.model_s = codec.seconds(self._parameters)

    def part_bytes(self, count: int) -> float:
        """Return the encoded size of ``count`` parameters of a model (bytes)."""
        return self._codec.part_bytes(count, self._parameters)

    def coding_steps(
        self, contents: Contents, name: Literal["encode", "decode"]
    ) -> tuple[Code, ...]:
        """Return the step in which a device encodes or decodes the models of a message.

        Args:
            contents: the contents of the message by name.
            name: ``encode`` or ``decode``.

        Returns:
            A tuple with a single step; an empty tuple if encoding or decoding takes no time.
        """
        models = 0  # count of whole models, each of which takes ``model_s``
        parts_s = 0.0  # time of the parts of models, which depends on their sizes
        for value in contents.values():
            items = value if isinstance(value, Sequence) else [value]
            for item in items:
                if isinstance(item, Ref):
                    models += 1
                elif isinstance(item, Partial):
                    parts_s += self._codec.seconds(item.count)
        seconds = models * self.model_s + parts_s
        return (Code(name, seconds),) if seconds else ()

    def encode_and_decode(
        self,
        contents: Contents,
        bases: Mapping[Ref, Ref],
        residuals: Mapping[str, Ref],
        added_up: Collection[str] = (),
    ) -> CodedContents:
        """Encode and decode the models of contents by the codec.

        Args:
            contents: the contents by name.
            bases: update -> the model from which it was trained.
            residuals: name of a content -> the sender's residual (``Coded.residual``). The mapping
                is not changed.
            added_up: names of contents that device and server each add up over rounds. Such a
                content is encoded by ``Codec.for_added_up``, and has no residual in the result.
        """
        # A lossless codec returns the contents as they are, unless they have a part of a model: the
        # receiver completes the part to a whole model.
        if self._is_lossless and Partial not in map(type, contents.values()):
            return CodedContents(contents, {})
        arriving: dict[str, object] = {}
        new_residuals = dict(residuals)
        for name, value in contents.items():
            is_added_up = name in added_up
            coded = self._code_content(value, bases, residuals.get(name), is_added_up=is_added_up)
            arriving[name] = coded.received
            if coded.residual is not None:
                new_residuals[name] = coded.residual
        return CodedContents(arriving, new_residuals)

    def _code_content(
        self, value: object, bases: Mapping[Ref, Ref], residual: Ref | None, *, is_added_up: bool
    ) -> _CodedContent:
        """Encode and decode a content; a content without a model is returned unchanged.

        Args:
            value: the content.
            bases: update -> the model from which it was trained.
            residual: the sender's residual of the content; None before the first message.
            is_added_up: whether device and server each add up the contents of this name.
        """
        if isinstance(value, Partial):  # the receiver completes it, even if nothing is lost
            return self._code_part(value, bases.get(value.model), residual)
        if self._is_lossless:
            return _CodedContent(value)
        if isinstance(value, Ref):
            codec = self._codec.for_added_up if is_added_up else self._codec
            base = bases.get(value)
            coded = codec.code(self._learner, self._parameters, value, base, residual)
            # both sides add up the decoded contents, so that no residual has to be stored
            return _CodedContent(coded.received, None if is_added_up else coded.residual)
        # a list of models
        if isinstance(value, Sequence) and any(isinstance(item, Ref) for item in value):
            return _CodedContent([self._code_item(item) for item in value])
        return _CodedContent(value)

    def _code_item(self, item: object) -> object:
        """Encode and decode an item of a list in a message; an item that is no model is unchanged."""
        if not isinstance(item, Ref):
            return item
        return self._codec.code(self._learner, self._parameters, item, None, None).received

    def _code_part(self, value: Partial, base: Ref | None, residual: Ref | None) -> _CodedContent:
        """Encode and decode some tensors of a model.

        Args:
            value: the tensors.
            base: the model from which ``value.model`` was trained; None if there is none.
            residual: the sender's residual of the tensors; None before the first message.

        Returns:
            The whole model that the receiver completes from the decoded tensors, and the residual
            of the tensors.
        """
        places = value.places  # ranges of the tensors in the array of all parameters
        size = value.count
        apply = self._learner.apply
        # ``spliced`` puts the tensors into ``value.rest``, ``taken`` takes them out of a model
        if self._is_lossless:
            if value.rest is value.model:  # the model is whole already
                return _CodedContent(value.model)
            return _CodedContent(apply(spliced, [value.rest, value.model], places=places))
        model = apply(taken, [value.model], size=size, places=places)
        start = None if base is None else apply(taken, [base], size=size, places=places)
        coded = self._codec.code(self._learner, size, model, start, residual)
        completed = apply(spliced, [value.rest, coded.received], places=places)
        return _CodedContent(completed, coded.residual)
