"""How large a model is in a message."""

from pydantic import model_validator

from fedsim.spec import Spec
from fedsim.units import Bytes

_BYTES_PER_PARAMETER = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


class MessageSize(Spec):
    """How large a model is in a message: by its number format, or plainly. Sizes only; the learning stays in float32.

    Attributes:
        dtype: number format, one of float64, float32 (the default), float16, bfloat16, int8.
        size: the size itself, for compressed messages.
    """

    dtype: str = "float32"
    size: Bytes | None = None

    @model_validator(mode="after")
    def _known(self) -> "MessageSize":
        if self.dtype not in _BYTES_PER_PARAMETER:
            raise ValueError(f"'dtype' is {self.dtype!r}; allowed are {', '.join(_BYTES_PER_PARAMETER)}")
        return self

    def bytes(self, parameters: float) -> float:
        """Bytes of a model with so many parameters."""
        return parameters * _BYTES_PER_PARAMETER[self.dtype] if self.size is None else self.size


class MessagesSpec(Spec):
    """``[messages]``: the size of a model on its way down and of an update on its way up."""

    down: MessageSize = MessageSize()
    up: MessageSize = MessageSize()
