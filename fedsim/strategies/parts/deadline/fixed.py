"""The same deadline in every round."""

from typing import Any, Literal

from fedsim.language.units import PositiveSeconds
from fedsim.strategies.parts.deadline import Deadline


class Fixed(Deadline):
    """Clients have ``time`` (s) in every round; ``deadline = "90 s"`` is short for it."""

    kind: Literal["fixed"] = "fixed"
    time: PositiveSeconds

    def least_s(self) -> float:
        """``time``."""
        return self.time

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        """``time``."""
        return self.time
