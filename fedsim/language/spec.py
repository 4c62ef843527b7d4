"""The base of everything that a scenario may say: a frozen pydantic model that refuses unknown keys and wrong types.

A spec is data *and* the rule it names: ``Renewal`` holds the mean on and off times and knows how to draw a path. So one kind
of thing is one class in one file, and ``scenario.py`` only puts them together.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.errors import nearest

Epochs = Annotated[int, Field(ge=1, le=100_000)]
"""Passes over a device's data: the end of each is written down, so their number has a bound."""

Iterations = Annotated[int, Field(ge=1, le=1_000_000)]
"""Steps of SGD."""


class Spec(BaseModel):
    """A part of a scenario. Subclasses that are one of several have a ``kind`` that tells them apart."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Refuse an unknown key with the allowed names and the nearest of them; nothing is -0.0, which some take for less."""
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "has the unknown key {key}; allowed are {allowed}{hint}",
                        {"key": repr(key), "allowed": ", ".join(cls.model_fields), "hint": nearest(str(key), cls.model_fields)},
                    )
            return {key: value + 0.0 if isinstance(value, float) else value for key, value in data.items()}
        return data
