"""Uniform client selection (McMahan et al., 2017)."""

from typing import Any, ClassVar, Literal

from fedsim.federation.server import Server
from fedsim.strategies.parts.selection import Selection


class Random(Selection):
    """Clients uniformly at random, without replacement, out of those that can be had."""

    uniform: ClassVar[bool] = True

    kind: Literal["random"] = "random"

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        return server.sample(count, "select", *ids, among=among)
