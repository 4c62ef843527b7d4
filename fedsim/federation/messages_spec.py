"""``[messages]``: codecs of the models in messages."""

from typing import Self

from pydantic import model_validator

from fedsim.common.spec import Spec
from fedsim.federation.codecs import CodecSpec, Plain


class MessagesSpec(Spec):
    """``[messages]``: codecs of the models in messages.

    Attributes:
        down: codec of models that are sent to devices.
        up: codec of updates that devices send.
    """

    down: CodecSpec = Plain()
    up: CodecSpec = Plain()

    @model_validator(mode="after")
    def _check_directions(self) -> Self:
        """Raise ``ValueError`` if a codec is not allowed in its direction."""
        for direction, codec in (("down", self.down), ("up", self.up)):
            if direction not in codec.ways:  # the directions that the codec can encode
                raise ValueError(
                    f"'{direction}' is {codec.kind!r}, which is a codec for "
                    f"{' and '.join(codec.ways)} only"
                )
        if self.down.stores_residual:
            raise ValueError(
                "'down' has error_feedback = true; only devices remember what they have not "
                "sent, so 'up' alone may"
            )
        return self
