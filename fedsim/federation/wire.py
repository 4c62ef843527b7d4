"""``[messages]``: how models are written on their way down and up; and the contents of messages, brought through it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from fedsim.federation.codecs import Codec, CodecSpec, Coded
from fedsim.federation.codecs.plain import Plain
from fedsim.federation.contents import Contents
from fedsim.language.spec import Spec
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
        self._learner = learner
        self._parameters = int(learner.parameters)
        self.changes_nothing = isinstance(codec, Plain)
        self.model_bytes = codec.bytes(learner.parameters)
        self.model_s = codec.seconds(self._parameters)

    def work_on(self, contents: Contents, name: Literal["encode", "decode"]) -> tuple[Code, ...]:
        """What a device has to do to write or read the models of contents; nothing where that takes no time."""
        if not self.model_s:
            return ()
        listed = [value if isinstance(value, Sequence) else [value] for value in contents.values()]
        models = sum(isinstance(item, Ref) for items in listed for item in items)
        return (Code(name, models * self.model_s),) if models else ()

    def through(self, contents: Contents, bases: dict[Ref, Ref], kept: dict[str, Ref]) -> tuple[dict[str, Any], dict[str, Ref]]:
        """What arrives of contents, and what the sender then keeps (of several models in one content nothing).

        Args:
            contents: what is sent.
            bases: for an update the model from which it was trained, which both sides have.
            kept: what the sender has kept of contents of these names.
        """

        def code(value: Ref, base: Ref | None = None, rest: Ref | None = None) -> Coded:
            return self._codec.code(self._learner, self._parameters, value, base, rest)

        arriving, keeping = dict(contents), dict(kept)
        for name, value in contents.items():
            if isinstance(value, Ref):
                arriving[name], rest = code(value, bases.get(value), kept.get(name))
                if rest is not None:
                    keeping[name] = rest
            elif isinstance(value, Sequence) and any(isinstance(item, Ref) for item in value):
                arriving[name] = [code(item).received if isinstance(item, Ref) else item for item in value]
        return arriving, keeping
