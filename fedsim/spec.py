"""The base of everything that a scenario may say: a frozen pydantic model that refuses unknown keys and wrong types.

A spec is data *and* the rule it names: ``Renewal`` holds the mean on and off times and knows how to draw a path. So one kind
of thing is one class in one file, and ``scenario.py`` only puts them together.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from fedsim.errors import nearest


class Spec(BaseModel):
    """A part of a scenario. Subclasses that are one of several have a ``kind`` that tells them apart."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Refuse an unknown key with the allowed names and the nearest of them."""
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key",
                        "has the unknown key {key}; allowed are {allowed}{hint}",
                        {"key": repr(key), "allowed": ", ".join(cls.model_fields), "hint": nearest(str(key), cls.model_fields)},
                    )
        return data
