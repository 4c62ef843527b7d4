"""What a strategy or one of its parts cannot do is refused by name, with the value and what is
allowed.
"""

from typing import Any

import pytest

import fedsim
from tests.strategies.worlds import ROTATED, Sections

KRUM: Sections = {"kind": "krum", "malicious": 2}
DIGITS: Sections = {"source": "digits"}
MLP: Sections = {"model": {"kind": "mlp", "hidden": [13]}, "data": DIGITS}
TREE: Sections = {"network": {"kind": "tree", "cells": 3, "edge": {}}}
OORT: Sections = {"kind": "oort", "pacer_step": "20 s"}
SECURE: Sections = {"neighbors": 4}
FROM_DOWNLOAD: Sections = {"deadline": {"kind": "fixed", "time": "9 s", "since": "download"}}
PEERS: Sections = {"population": {"devices": 6}}
LEAVING: Sections = {"kind": "exponential", "mean_stay": "60 s"}
EDGE_3: Sections = {
    "world": {"processes": [{"kind": "edge-outage", "edge": 3, "every": "1 s", "lasts": "1 s"}]}
}
INSTANT: Sections = {"learning": "off", "population": {"speed": "inf samples/s"}}
BATCHED: Sections = {
    "kind": "module",
    "factory": "tests.strategies.test_own_models:normed",
    "args": {"norm": "batch"},
}
LORA: Sections = {"model": {"kind": "mlp", "hidden": [13], "lora": {"rank": 4}}, "data": DIGITS}
KEPT: Sections = {"kind": "torch", "optimizer": "SGD", "state": "kept"}
BY_DATA = "goes by what clients find in their data"
ASKS_FIRST = "which asks candidates before a round begins"


def private(**how: Any) -> Sections:
    return {"aggregation": {"kind": "private", "account": False} | how}


def chosen_by(kind: str, **keys: Any) -> Sections:
    return {"selection": {"kind": kind} | keys}


def relative(**keys: Any) -> Sections:
    return {"deadline": {"kind": "relative"} | keys}


Case = tuple[Sections, Sections, str]

PARAMETERS: list[Case] = [
    # Without rounds.
    (
        {"kind": "fedasync", "concurrency": 21},
        {"population": {"devices": 20}},
        "concurrency is 21, more than the .*20 devices",
    ),
    (
        {"kind": "fedbuff", "deadline": "3 s"},
        {},
        "strategy has the key 'deadline', which says when a round ends",
    ),
    ({"kind": "fedbuff", "every": "1 h"}, {}, "unknown key 'every'"),
    ({"kind": "fedasync", "alpha_decay_at": [0]}, {}, r"strategy\.alpha_decay_at"),
    ({"kind": "fedat", "tiers": 9}, PEERS, "tiers is 9, more than the population's 6 devices"),
    (
        {"kind": "fedat", "tiers": 2, "clients_per_round": 2, "aggregation": "krum"},
        PEERS,
        r"malicious is 1.*there are 2",
    ),
    # Keys that would change nothing.
    (
        {"kind": "local"},
        {"messages": {"up": "float16"}},
        "messages is given, and the strategy 'local' sends nothing; leave",
    ),
    (
        {"kind": "local"},
        {"messages": {"down": "int8"}},
        "messages is given, and the strategy 'local' sends nothing",
    ),
    (
        {"kind": "hetlora", "aggregation": "mean"},
        LORA,
        "'aggregation' is 'mean', and hetlora weighs updates by the norms",
    ),
    (
        {"kind": "hetlora", "sizes": [2.0, 2.0], "redraw": True},
        LORA,
        "'redraw' is true, which counts only where 'sizes'",
    ),
    (
        {"kind": "heterofl", "sizes": {"phone-low": 0.5}, "redraw": True},
        MLP,
        "'redraw' is true, which counts only where",
    ),
    (
        {"kind": "d-psgd", "topology": {"kind": "torus", "every": 3}},
        {},
        "'every' is 3, which counts only with a graph that",
    ),
    (
        {},
        {"training": KEPT},
        "training.state is 'kept', and 'SGD' has no state with these training.args; allowed is "
        "'fresh'",
    ),
    (
        {},
        {"training": KEPT | {"args": {"momentum": 0.0}}},
        "training.state is 'kept', and 'SGD' has no state",
    ),
    # Deadlines and schedules.
    *(
        (relative(times=value), {}, f"strategy.deadline.times is {value}")
        for value in (0.0, -1.0, float("inf"))
    ),
    (
        {"relative_deadline": 1.0},
        {},
        "has the key 'relative_deadline', which it does not take; allowed is 'deadline.times'",
    ),
    (relative(devices="slowed"), {}, "deadline.devices is 'slowed'; allowed are unslowed, all"),
    (relative(since="upload"), {}, "deadline.since is 'upload'; allowed are round, download"),
    ({"deadline": "0 s"}, {}, "strategy.deadline is .*: a time here must be above 0 s"),
    (
        {"kind": "ditto"} | FROM_DOWNLOAD,
        {},
        "'deadline.since' is 'download'.*trains its own model too",
    ),
    ({"kind": "fedrep"} | FROM_DOWNLOAD, {}, "'deadline.since' is 'download'.*trains its head too"),
    (
        {"kind": "scaffold", "option": "I"} | relative(),
        {},
        "'deadline.since' is 'download'.*allowed is 'round'",
    ),
    ({"every": "0 s"}, {}, "^strategy.every is.*above 0 s"),
    ({"every": "inf s"}, {}, "^strategy.every is.*0.001 s to 1e.10 s"),
    (
        {"kind": "pfedme", "local_epochs": 3},
        {},
        "'local_epochs' is 3, but pFedMe's clients train for 'local_rounds'",
    ),
    ({}, {"population": {"stragglers": {"share": 1.2}}}, "population.stragglers.share is 1.2"),
    (
        {},
        {"population": {"samples": {"low": 30, "high": 20}}},
        "population.samples.*'low' is above 'high'",
    ),
    # Groups and tiers.
    *(
        ({"kind": "cfl", "split_rounds": at}, {}, r"split_rounds.*from 0 on, in ascending")
        for at in ([5, 5], [9, 5], [-1])
    ),
    (
        {"kind": "cfl", "over_selection": 1.5},
        {},
        "over_selection is 1.5, and .* but a round asks all clients",
    ),
    (
        {"kind": "lcfl", "groups": 7},
        PEERS,
        "groups is 7, more than the population's 6 devices; allowed are 1 to 6",
    ),
    (
        {"kind": "lcfl", "groups": 1, "clusterer": "dbscan"},
        {},
        "groups is 1, from which no radius for dbscan follows",
    ),
    (
        {"kind": "lcfl", "clients_per_round": 5},
        {},
        "'clients_per_round', which it does not take; allowed is 'participation'",
    ),
    *(
        ({"kind": kind, key: 3}, {}, f"'{key}', which it does not take; allowed is '{now}'")
        for kind, key, now in (
            *(
                ("lcfl", "start", "clusterer.start"),
                ("lcfl", "warmup", "moment"),
                ("fl-hc", "warmup_rounds", "moment.rounds"),
            ),
            *(
                ("flexcfl", "alpha", "moment.devices"),
                ("fedgroup", "pretrain_iterations", "moment.steps"),
            ),
            *(
                ("ifca", "dynamic", "moment.shift"),
                ("fesem", "sweep", "follows"),
                ("cfl", "split_step", "follows"),
            ),
        )
    ),
    (
        {"kind": "lcfl", "moment": "pre-training"},
        {},
        "moment.kind is 'pre-training'; allowed are rounds, local",
    ),
    ({"kind": "fesem", "aggregation": "first", "follows": "paper"}, {}, "'follows' is 'paper'"),
    ({"kind": "fpfc", "rho": 0.3}, {}, r"allowed is \(a - 1\) rho above 1"),
    (
        {"kind": "tifl", "mode": "static"},
        {},
        "'probabilities' belong to mode 'static'.*they are None",
    ),
    (
        {"kind": "tifl", "mode": "static", "probabilities": [0.5, 0.5]},
        {},
        "allowed are 5, one a tier",
    ),
    ({"kind": "tifl", "mode": "static", "probabilities": [0.0] * 5}, {}, "not all 0"),
    (
        {"kind": "cata-fed", "deadline": {"kind": "fixed", "time": "9 s", "since": "round"}},
        {},
        "'since' may not be 'round'",
    ),
    # Aggregations and server optimisers.
    (
        {"clients_per_round": 6, "aggregation": KRUM},
        {},
        r"is 2; .* at least 7 .* \(2 f \+ 3\), .* 6; allowed are at most 1",
    ),
    (
        {"clients_per_round": 6, "aggregation": "bulyan"},
        {},
        r"needs at least 7 updates.*allowed are at most 0",
    ),
    (
        {"kind": "ifca", "clients_per_round": 6, "aggregation": KRUM},
        {},
        r"'krum' then needs at least 7",
    ),
    (
        {"kind": "flexcfl", "moment": {"devices": 4}, "aggregation": "krum"},
        {},
        r"at least 5 updates .* there are 4",
    ),
    (
        chosen_by("flanp", accuracy=1.0) | {"aggregation": "bulyan"},
        {},
        r"'bulyan' .* 7 updates .* there are 2",
    ),
    (
        {"kind": "cfl", "aggregation": KRUM | {"malicious": 60}},
        {},
        r"'krum' then needs at least 123 updates",
    ),
    (
        {"kind": "lcfl", "selection": {"kind": "flanp", "accuracy": 1.0}, "aggregation": "bulyan"},
        {},
        r"there are 2",
    ),
    (
        {"kind": "fedavg", "aggregation": "median"},
        {"messages": {"up": "top-k"}},
        r"leaves out so much.*share = 0.5",
    ),
    (
        {"kind": "fedavg", "aggregation": "bulyan"},
        {"messages": {"up": "random-k"}},
        r"leaves out so much",
    ),
    (
        private(where="local"),
        {"messages": {"up": "sign"}},
        r"makes changes longer again.*where = 'central'",
    ),
    (
        {"kind": "lcfl", "groups": 2, "aggregation": KRUM | {"malicious": 60}},
        {},
        r"'krum' then needs at least 123",
    ),
    ({"aggregation": "trimed-mean"}, {}, r"did you mean 'trimmed-mean'"),
    (
        {"server": {"kind": "sgd", "nesterov": True}},
        {},
        "strategy.server.*'nesterov' is true, .* only where 'momentum'",
    ),
    (
        private(where="local", adaptive={"count_noise": 1.0}),
        {},
        "'adaptive' is given and 'where' is 'local'",
    ),
    (
        private(adaptive={"count_noise": 0.5}),
        {},
        "'adaptive.count_noise' is 0.5; with noise 1 allowed is more than 0.5",
    ),
    # Secure aggregation.
    (
        {"secure_aggregation": SECURE, "aggregation": "median"},
        {},
        "is given.*'median' compares single updates",
    ),
    (
        {"secure_aggregation": SECURE} | private(),
        {},
        "clip each update; allowed is where = 'local'",
    ),
    ({"kind": "ifca", "secure_aggregation": SECURE}, {}, "unknown key 'secure_aggregation'"),
    ({"kind": "refl", "secure_aggregation": SECURE}, {}, "REFL compares late updates"),
    ({"kind": "fedbuff", "secure_aggregation": SECURE}, {}, "secure_aggregation"),
    (
        {"secure_aggregation": SECURE},
        {"messages": {"up": "top-k"}},
        r"messages\.up is 'top-k'.*allowed is 'plain'",
    ),
    (
        {"secure_aggregation": SECURE, "clients_per_round": 4},
        {},
        "neighbors is 4.* 4 clients; allowed are at most 3",
    ),
    ({"secure_aggregation": {"neighbors": 3}}, {}, "'neighbors' is 3; allowed are even numbers"),
    (
        {"secure_aggregation": {}} | chosen_by("flanp", accuracy=1.0),
        {},
        "'flanp' makes a gradient of single updates",
    ),
    # Selections.
    (
        {"kind": "fedbuff"} | chosen_by("flanp", accuracy=1.0),
        {},
        rf"strategy\.selection is 'flanp', {ASKS_FIRST}",
    ),
    (
        {"kind": "fedasync"} | chosen_by("favor", target=0.9),
        {},
        rf"strategy\.selection is 'favor', {ASKS_FIRST}",
    ),
    (
        {"kind": "local"} | chosen_by("favor", target=0.9),
        {},
        r"strategy\.selection is 'favor'.*local training has none",
    ),
    (
        {"kind": "local"} | chosen_by("power-of-choice"),
        {},
        r"strategy\.selection is 'power-of-choice'.*training has none",
    ),
    (chosen_by("oort"), {}, "'pacer_step' is missing"),
    # Edge servers.
    (
        {"kind": "hierfavg"},
        {"network": {"kind": "star"}},
        "'hierfavg', which needs edge servers, and the network has none",
    ),
    ({"kind": "hierfavg"}, {"network": {"kind": "tree", "cells": 2}}, "network.edge"),
    (
        {"kind": "hierfavg", "selection": OORT},
        TREE,
        "'selection' is 'oort', which goes by what clients send",
    ),
    (
        {"kind": "hierfavg"} | chosen_by("favor", target=0.9),
        TREE,
        "'selection' is 'favor', which goes by what",
    ),
    (
        {"kind": "hierfavg"} | chosen_by("flanp", accuracy=1.0),
        TREE,
        "'selection' is 'flanp', which goes by what",
    ),
    (
        {"kind": "hierfavg", "kappa1": 5, "local_epochs": 2},
        TREE,
        "'kappa1' and 'local_epochs' both say",
    ),
    ({"kind": "hierfavg", "over_selection": 1.5}, TREE, "over_selection"),
    # Without a server.
    ({"kind": "d-psgd", "topology": "rinf"}, PEERS, "'rinf'; allowed are ring, .*did you mean"),
    (
        {"kind": "d-psgd", "topology": {"kind": "hypercube", "parameters": {"n": 2}}},
        PEERS,
        "of 4 nodes; allowed is .* of 6",
    ),
    ({"kind": "d-psgd", "server": "adam"}, PEERS, "unknown key 'server'"),
    ({"kind": "gossip", "selection": "oort"}, PEERS, "unknown key 'selection'"),
    (
        {"kind": "epidemic", "sample_size": 6},
        PEERS,
        "sample_size is 6; with 6 devices allowed are 1 to 5",
    ),
    ({"kind": "epidemic"}, PEERS | {"energy": {}}, "energy is given"),
    ({"kind": "epidemic"}, PEERS | {"messages": {"down": "float16"}}, "messages.down is given"),
    (
        {"kind": "d-psgd"},
        PEERS | {"messages": {"up": "top-k"}},
        "messages.up is given, which writes changes",
    ),
    (
        {"kind": "gossip"},
        PEERS | {"messages": {"up": {"kind": "qsgd", "error_feedback": True}}},
        "messages.up is given",
    ),
    ({"kind": "epidemic"}, PEERS | {"server": {"patience": "5 s"}}, "server is given"),
    ({"kind": "gossip"}, {"population": {"departures": LEAVING}}, "strategy.deadline is missing"),
]

ACCOUNTS: list[tuple[Sections, str]] = [
    *((chosen_by("power-of-choice", losses=losses), BY_DATA) for losses in ("asked", "reported")),
    ({"selection": OORT}, BY_DATA),
    (chosen_by("favor", target=0.9), BY_DATA),
    (chosen_by("flanp", accuracy=1.0), BY_DATA),
    ({"kind": "tifl", "mode": "credits", "credits": 9}, "tiers are chosen by the accuracy"),
    *(
        ({"kind": kind}, "clusters are made of updates that are not clipped")
        for kind in ("cfl", "lcfl", "fl-hc")
    ),
    ({"kind": "fedat"}, "tiers have rounds of their own"),
    ({"kind": "hierfavg"}, "edge servers have rounds of their own"),
]

WHEN_IT_RUNS: list[Case] = [
    (relative(), INSTANT, "0 s in this population"),
    (
        {"kind": "cata-fed", "smallest_part": 5000, "deadline": "9 s"},
        {"data": DIGITS},
        r"or strategy\.mitigation = false",
    ),
    (
        {"kind": "tifl", "mode": "credits"},
        {"stop": {"simulated_time": "1 h"}},
        "credits is missing: its default is the",
    ),
    (
        {"kind": "fednova", "mu": 20},
        {"training": {"lr": 0.1}},
        r"strategy\.mu is 20.*allowed is less than 10",
    ),
    (
        {"kind": "moon"},
        {"model": {"kind": "logistic"}},
        r"its layers are Linear; allowed are models with a torch\.nn\.Linear",
    ),
    (
        {"kind": "fedper", "head": ["4.bias"]},
        MLP,
        r"strategy\.head has '4\.bias'.*it has 1\.weight, 1\.bias, 3\.weight",
    ),
    (
        {"kind": "fedper"},
        {"data": ROTATED},
        r"every tensor of the model stays on its device: 1\.weight, 1\.bias",
    ),
    (
        {"kind": "fedrep"},
        {"learning": "off", "model": {"kind": "size", "bytes": "1 MB"}},
        r"'fedrep', which tells the tensors",
    ),
    ({"kind": "fedbn"}, MLP, "no normalisation layer, only Linear; allowed"),
    ({"kind": "fedbn", "keeps": "statistics"}, MLP, "no running statistics, only Linear; allowed"),
    (
        {"kind": "fedbn"},
        {"training": {"batch_size": 1}, "data": DIGITS, "model": BATCHED},
        r"the part '2' is a BatchNorm1d.*device 0 has one.*allowed is a training",
    ),
    ({"kind": "hierfavg"}, TREE | EDGE_3, "there is no link 'edge 3 receive'"),
]


@pytest.mark.parametrize(
    ("strategy", "sections", "says"), PARAMETERS, ids=lambda value: str(value)[:70]
)
def test_parameters(strategy: Sections, sections: Sections, says: str) -> None:
    with pytest.raises(fedsim.ScenarioError, match=says):
        fedsim.Scenario(**sections, strategy={"kind": "fedavg"} | strategy)


@pytest.mark.parametrize(
    ("strategy", "sections", "says"), WHEN_IT_RUNS, ids=lambda value: str(value)[:70]
)
def test_what_is_known_when_a_run_is_built(
    strategy: Sections, sections: Sections, says: str
) -> None:
    scenario = fedsim.Scenario(
        **{"stop": {"rounds": 1}} | sections, strategy={"kind": "fedavg"} | strategy
    )
    with pytest.raises(fedsim.ScenarioError, match=says):
        fedsim.run(scenario, executor="inline")


@pytest.mark.parametrize(("strategy", "why"), ACCOUNTS, ids=str)
def test_an_account_of_what_is_not_counted(strategy: Sections, why: str) -> None:
    pytest.importorskip("dp_accounting")
    strategy = (
        {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 1} | strategy
        if "kind" not in strategy
        else strategy
    )
    with pytest.raises(
        fedsim.ScenarioError,
        match=rf"'aggregation.account' is true, but .*{why}.*; allowed is false",
    ):
        fedsim.Scenario(**TREE, strategy=strategy | {"aggregation": "private"})
    fedsim.Scenario(**TREE, strategy=strategy | private())
    fedsim.Scenario(**TREE, strategy=strategy | {"aggregation": {"kind": "private", "noise": 0.0}})
