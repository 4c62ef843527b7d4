"""Basic strategies such as FedAvg, base classes of strategies, and the registry of all strategies.

Most other strategies are in ``fedsim.toolbox.strategies``. For each ``kind`` the registry has the
import path of the class, and a title of the form ``name in reports: summary``. A strategy is
imported when its kind is first used. The package imports ``federation`` and all that ``federation``
imports.
"""

from typing import TYPE_CHECKING, Any

from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.table_classes import with_any_kind

if TYPE_CHECKING:
    from fedsim.strategies.base import Strategy
    from fedsim.strategies.params import StrategyParams


class _Strategies(Registry):
    def spec(self, kind: str, key: str = "kind") -> "type[StrategyParams]":
        """Return the class of a strategy's parameters.

        A user's strategy may inherit the parameters of a built-in strategy, which allow one
        ``kind``. The returned class then allows any ``kind``.

        Args:
            kind: kind of a registered strategy, or import path of a user's strategy.
            key: the scenario key that named the kind, for messages.
        """
        params: type[StrategyParams] = self.class_of(kind, key).Params
        if kind in self.known:
            return params
        return with_any_kind(params)

    def holds(self, value: Spec) -> bool:
        from fedsim.strategies.params import StrategyParams

        return isinstance(value, StrategyParams)


_HERE = "fedsim.strategies"
_TOOLS = "fedsim.toolbox.strategies"
_PEERS = "fedsim.toolbox.peers"
STRATEGIES = _Strategies(
    "strategy",
    f"{_HERE}.base:Strategy",
    {
        "cata-fed": (
            f"{_TOOLS}.cata_fed:CataFed",
            "CATA-Fed: as many epochs as fit into the time, cohorts of similar data size",
        ),
        "ca2fl": (
            f"{_TOOLS}.ca2fl:CA2FL",
            "CA2FL: buffered updates, calibrated by the cached ones of all devices",
        ),
        "cfl": (
            f"{_TOOLS}.cfl:CFL",
            "CFL: clusters whose updates disagree are split in two",
        ),
        "ditto": (
            f"{_TOOLS}.ditto:Ditto",
            "Ditto: a personal model for every device, held near the global one",
        ),
        "diloco": (
            f"{_PEERS}.diloco:DiLoCo",
            "DiLoCo: no server, an all-reduce every H steps and an outer Nesterov step",
        ),
        "d-psgd": (
            f"{_PEERS}.rounds:DPSGD",
            "D-PSGD: no server, each device averages its model with its neighbours'",
        ),
        "fedasync": (
            f"{_HERE}.fedasync:FedAsync",
            "FedAsync: each update is mixed in as it arrives, weighted by its staleness",
        ),
        "fedat": (
            f"{_TOOLS}.fedat:FedAT",
            "FedAT: tiers of similar speed, each with its own rounds",
        ),
        "fedavg": (
            f"{_HERE}.fedavg:FedAvg",
            "FedAvg: the mean of the cohort's models, weighted by samples",
        ),
        "fedbn": (f"{_TOOLS}.fedbn:FedBN", "FedBN: normalisation layers stay on each device"),
        "fedbuff": (
            f"{_HERE}.fedbuff:FedBuff",
            "FedBuff: updates are buffered, and a full buffer makes the next version",
        ),
        "epidemic": (
            f"{_PEERS}.rounds:Epidemic",
            "Epidemic learning: each device sends its model to a few random devices",
        ),
        "fedcompass": (
            f"{_TOOLS}.fedcompass:FedCompass",
            "FedCompass: local steps by speed, so that groups of clients arrive together",
        ),
        "feddr": (
            f"{_TOOLS}.feddr:FedDR",
            "FedDR: local proximal points, reflected and averaged (Douglas-Rachford)",
        ),
        "feddyn": (
            f"{_TOOLS}.feddyn:FedDyn",
            "FedDyn: regularised local objectives whose optima become the global one",
        ),
        "fedgroup": (f"{_TOOLS}.flexcfl:FlexCFL", "FedGroup: FlexCFL without migration"),
        "fednova": (
            f"{_TOOLS}.fednova:FedNova",
            "FedNova: updates are normalised by their counts of local steps",
        ),
        "fedper": (
            f"{_TOOLS}.fedper:FedPer",
            "FedPer: the layers next to the output stay on each device",
        ),
        "fedprox": (f"{_HERE}.fedprox:FedProx", "FedProx: a proximal term, and partial work"),
        "fedrep": (
            f"{_TOOLS}.fedrep:FedRep",
            "FedRep: each device trains its head, then the layers that all share",
        ),
        "fesem": (
            f"{_TOOLS}.fesem:FeSEM",
            "FeSEM: each client belongs to the group whose model is nearest to its own",
        ),
        "fesem-mig": (
            f"{_TOOLS}.fesem:FeSEM",
            "FeSEM: the same as fesem; FlexCFL's tables name it FeSEM-MIG",
        ),
        "fl-hc": (
            f"{_TOOLS}.fl_hc:FLHC",
            "FL+HC: devices are clustered once, by their updates of the common model",
        ),
        "flexcfl": (
            f"{_TOOLS}.flexcfl:FlexCFL",
            "FlexCFL: groups by the direction of devices' first updates, and migration",
        ),
        "flora": (
            f"{_TOOLS}.flora:FLoRA",
            "FLoRA: adapters of all clients are stacked, and merged into the weights",
        ),
        "flower": (
            "fedsim.flower.strategy:Flower",
            "Flower app: a ServerApp and a ClientApp as they are, in simulated time",
        ),
        "fpfc": (
            f"{_TOOLS}.fpfc:FPFC",
            "FPFC: a model for each device, drawn towards similar models",
        ),
        "gossip": (
            f"{_PEERS}.rounds:Gossip",
            "AD-PSGD: no server, two devices at a time average their models",
        ),
        "heterofl": (
            f"{_TOOLS}.heterofl:HeteroFL",
            "HeteroFL: each device trains as wide a part of the model as it can",
        ),
        "hetlora": (
            f"{_TOOLS}.hetlora:HetLoRA",
            "HetLoRA: adapters whose rank differs between devices",
        ),
        "hierfavg": (
            f"{_TOOLS}.hierfavg:HierFAVG",
            "HierFAVG: edge servers average their clients' models, the server theirs",
        ),
        "hypcluster": (
            f"{_TOOLS}.ifca:HypCluster",
            "HypCluster: IFCA with clients weighted by their samples",
        ),
        "ifca": (
            f"{_TOOLS}.ifca:IFCA",
            "IFCA: each client chooses the group whose model fits its data best",
        ),
        "ifca-mig": (
            f"{_TOOLS}.ifca:IFCA",
            "IFCA with migration: clients choose again when their data have shifted",
        ),
        "lcfl": (
            f"{_TOOLS}.lcfl:LCFL",
            "LCFL: devices are clustered once, by the losses of each other's models",
        ),
        "pacfl": (
            f"{_TOOLS}.pacfl:PACFL",
            "PACFL: clusters by the principal angles between subspaces of the clients' data",
        ),
        "local": (
            f"{_TOOLS}.local:Local",
            "Local training: every device trains alone, and nothing is sent",
        ),
        "local-sgd": (
            f"{_PEERS}.diloco:LocalSGD",
            "Local SGD: no server, an all-reduce takes the mean every H steps",
        ),
        "mifa": (
            f"{_TOOLS}.mifa:MIFA",
            "MIFA: the latest update of every device counts in each round",
        ),
        "moon": (
            f"{_TOOLS}.moon:MOON",
            "MOON: representations held near those of the global model",
        ),
        "pfedme": (
            f"{_TOOLS}.pfedme:PFedMe",
            "pFedMe: personal models around local ones, which become the global one",
        ),
        "q-fedavg": (
            f"{_TOOLS}.q_fedavg:QFedAvg",
            "q-FedAvg: clients with larger losses weigh more",
        ),
        "refl": (
            f"{_TOOLS}.refl:REFL",
            "REFL: late updates are used too, weighted by their staleness",
        ),
        "rfedavg": (
            f"{_TOOLS}.rfedavg:RFedAvg",
            "RFedAvg: clusters of similar gradients, reweighted to balance classes",
        ),
        "scaffold": (
            f"{_HERE}.scaffold:Scaffold",
            "SCAFFOLD: local steps corrected by control variates",
        ),
        "tifl": (
            f"{_TOOLS}.tifl:TiFL",
            "TiFL: each round asks clients of one tier, of similar speed or data size",
        ),
    },
    usual="fedavg",
    key="strategy",
)


def strategy_class(kind: str) -> "type[Strategy[Any]]":
    """Return the class of a strategy.

    Args:
        kind: kind of a registered strategy, or import path of a user's strategy.

    Raises:
        ScenarioError: no strategy has this kind or import path.
    """
    strategy: type[Strategy[Any]] = STRATEGIES.class_of(kind, "strategy.kind")
    return strategy


def params_class(kind: str) -> "type[StrategyParams]":
    """Return the class of a strategy's parameters.

    Args:
        kind: kind of a registered strategy, or import path of a user's strategy.

    Raises:
        ScenarioError: no strategy has this kind or import path.
    """
    return STRATEGIES.spec(kind, "strategy.kind")


def strategy_name(kind: str) -> str | None:
    """Return the name of a built-in strategy for reports, such as "FedAvg"; None for a user's own.

    Args:
        kind: kind of the strategy, such as ``fedavg``.
    """
    if kind not in STRATEGIES.known:
        return None
    return STRATEGIES.known[kind][1].partition(":")[0]
