"""``[messages]``: how models are written on their way down and up; and the contents of messages, brought through it."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from fedsim.federation.codecs import Codec, CodecSpec, Coded
from fedsim.federation.codecs.lossy import Lossy
from fedsim.federation.codecs.plain import Plain
from fedsim.federation.contents import Contents, Partial
from fedsim.language.spec import Spec
from fedsim.learning.functions import spliced, taken
from fedsim.learning.refs import Ref
from fedsim.world.task import Code

if TYPE_CHECKING:
    from fedsim.learning import Learner


class MessagesSpec(Spec):
    """``[messages]``: the codec of models from the server to the devices, and of updates from them to it."""

    down: CodecSpec = Plain()
    up: CodecSpec = Plain()

    @model_validator(mode="after")
    def _ways(self) -> Self:
        for way, codec in (("down", self.down), ("up", self.up)):
            if way not in codec.ways:
                raise ValueError(f"'{way}' is {codec.kind!r}, which is a codec for {' and '.join(codec.ways)} only")
        if getattr(self.down, "error_feedback", False):
            raise ValueError(
                "'down' has error_feedback = true; only devices remember what they have not sent, so 'up' alone may"
            )
        return self


class Wire:
    """One direction of all messages.

    Args:
        codec: how models are written.
        learner: computes what has become of them.

    Attributes:
        model_bytes: of a model, as it is written.
        model_s: how long a device takes to write or read one (s).
    """

    def __init__(self, codec: Codec, learner: "Learner") -> None:
        self._codec = codec
        self._contractive = codec.model_copy(update={"error_feedback": True}) if isinstance(codec, Lossy) else codec
        self._learner = learner
        self._parameters = int(learner.parameters)
        self._changes_nothing = isinstance(codec, Plain)
        self.model_bytes = codec.bytes(learner.parameters)
        self.model_s = codec.seconds(self._parameters)

    def part_bytes(self, count: int) -> float:
        """Bytes of so many numbers of a model."""
        return self._codec.part_bytes(count, self._parameters)

    def work_on(self, contents: Contents, name: Literal["encode", "decode"]) -> tuple[Code, ...]:
        """Steps by which a device writes or reads the models of contents; none where that takes no time."""
        listed = [value if isinstance(value, Sequence) else [value] for value in contents.values()]
        models = sum(isinstance(item, Ref) for items in listed for item in items)
        parts = sum(self._codec.seconds(item.count) for items in listed for item in items if isinstance(item, Partial))
        seconds = models * self.model_s + parts
        return (Code(name, seconds),) if seconds else ()

    def changes(self, contents: Contents) -> bool:
        """Whether something arrives of contents that is not what they are."""
        return not self._changes_nothing or Partial in map(type, contents.values())

    def through(
        self, contents: Contents, bases: dict[Ref, Ref], kept: dict[str, Ref], added_up: Collection[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Ref]]:
        """Contents as they arrive, and the residuals that the sender then keeps (none of several models in one content).

        Some tensors of a model are written as an array of their own.

        Args:
            contents: what is sent.
            bases: for an update the model from which it was trained, which both sides have.
            kept: what the sender has kept of contents of these names.
            added_up: names of contents that both sides add up (``StrategyParams.added_up``): they are encoded as under error
                feedback, which bounds what is left out, and nothing of them is kept.
        """

        arriving, keeping = dict(contents), dict(kept)
        for name, value in contents.items():
            codec = self._contractive if name in added_up else self._codec
            if isinstance(value, Partial):
                arriving[name], rest = self._part(value, bases.get(value.model), kept.get(name))
                if rest is not None:
                    keeping[name] = rest
            elif self._changes_nothing:
                continue
            elif isinstance(value, Ref):
                arriving[name], rest = self._code(value, bases.get(value), kept.get(name), codec)
                if rest is not None and name not in added_up:
                    keeping[name] = rest
            elif isinstance(value, Sequence) and any(isinstance(item, Ref) for item in value):
                arriving[name] = [self._code(item).received if isinstance(item, Ref) else item for item in value]
        return arriving, keeping

    def _code(self, value: Ref, base: Ref | None = None, kept: Ref | None = None, codec: Codec | None = None) -> Coded:
        return (codec or self._codec).code(self._learner, self._parameters, value, base, kept)

    def _part(self, value: Partial, base: Ref | None, kept: Ref | None) -> Coded:
        """Some tensors as they arrive, in a whole model."""
        places, size, apply = value.places, value.count, self._learner.apply
        if self._changes_nothing:
            arriving = value.model
            if value.rest is not value.model:
                arriving = apply(spliced, [value.rest, value.model], places=places)
            return Coded(arriving)
        model, start = (None if ref is None else apply(taken, [ref], size=size, places=places) for ref in (value.model, base))
        assert model is not None
        received, rest = self._codec.code(self._learner, size, model, start, kept)
        return Coded(apply(spliced, [value.rest, received], places=places), rest)
