"""The strategies: one class in one file (or small folder) each, found by name.

``REGISTRY`` names every strategy and where it lives; nothing is imported before it is asked for. A strategy of the user's own
is named by its import path, ``package.module:Class``; ``fedsim.imports`` says who may name one.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fedsim.errors import ScenarioError, nearest
from fedsim.imports import find

if TYPE_CHECKING:
    from fedsim.strategies.base import Strategy, StrategyParams

REGISTRY: Mapping[str, str] = {
    "cata-fed": "fedsim.strategies.cata_fed.strategy:CataFed",
    "cfl": "fedsim.strategies.cfl.strategy:CFL",
    "fedasync": "fedsim.strategies.fedasync:FedAsync",
    "fedavg": "fedsim.strategies.fedavg:FedAvg",
    "fedbuff": "fedsim.strategies.fedbuff:FedBuff",
    "fedgroup": "fedsim.strategies.flexcfl.strategy:FedGroup",
    "fedprox": "fedsim.strategies.fedprox:FedProx",
    "fesem": "fedsim.strategies.fesem:FeSEM",
    "fesem-mig": "fedsim.strategies.fesem:FeSEMMig",
    "flexcfl": "fedsim.strategies.flexcfl.strategy:FlexCFL",
    "ifca": "fedsim.strategies.ifca:IFCA",
    "ifca-mig": "fedsim.strategies.ifca:IFCAMig",
    "lcfl": "fedsim.strategies.lcfl.strategy:LCFL",
    "local": "fedsim.strategies.local:Local",
    "rfedavg": "fedsim.strategies.rfedavg.strategy:RFedAvg",
    "scaffold": "fedsim.strategies.scaffold:Scaffold",
    "tifl": "fedsim.strategies.tifl.strategy:TiFL",
}


def strategy_class(kind: str) -> "type[Strategy[Any]]":
    """The class of a registered strategy, or of the user's own by import path.

    Raises:
        ScenarioError: there is no such strategy, or the path does not lead to one.
    """
    from fedsim.strategies.base import Strategy

    if kind not in REGISTRY and ":" not in kind:
        names = ", ".join(REGISTRY)
        raise ScenarioError(
            f"strategy.kind is {kind!r}; allowed are {names}, or your own as 'package.module:Class'{nearest(kind, REGISTRY)}"
        )
    return find(REGISTRY.get(kind, kind), "strategy.kind", Strategy, "fedsim.Strategy")  # type: ignore[no-any-return]


def params_class(kind: str) -> "type[StrategyParams]":
    """The parameters that a strategy takes.

    A class of the user's own may inherit those of one of ours, whose ``kind`` is that one's name; here it may be the path.
    """
    found = strategy_class(kind).Params
    return found if kind in REGISTRY else _with_any_kind(found)


@cache
def _with_any_kind(found: "type[StrategyParams]") -> "type[StrategyParams]":
    from pydantic import create_model

    return create_model(found.__name__, __base__=found, __module__=found.__module__, kind=(str, ...))
