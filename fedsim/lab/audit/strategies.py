"""Properties of the built-in strategies that the checks use; a user's strategy is in no list."""

PEERS = ("d-psgd", "diloco", "epidemic", "gossip", "local-sgd")
"""Strategies whose devices send to each other."""

PLAIN_EPOCHS = (
    "ca2fl",
    "fedasync",
    "fedavg",
    "fedbn",
    "fedbuff",
    "feddr",
    "feddyn",
    "fednova",
    "fedper",
    "fedprox",
    "mifa",
    "q-fedavg",
    "refl",
)
"""Strategies in which every training has ``local_epochs`` epochs."""

UNEVEN_EPOCHS = (
    "pfedme",
    "fedcompass",
    "flexcfl",
    "fedgroup",
    "flower",
    "heterofl",
    "hetlora",
    "flora",
)
"""Strategies in which an epoch is not always one pass over the samples."""

SGD_STEPS = {"hierfavg": "kappa1"}
"""Strategy -> parameter with the count of SGD steps of a training; None if epochs count instead."""

FULL_BATCHES = ("ifca", "lcfl", "rfedavg", "scaffold")
"""Strategies in which some trainings use all samples of a device as one batch."""

LONGER_EPOCHS = ("moon",)
"""Strategies in which an epoch takes longer than one training pass over the samples."""

WITHOUT_GROUPS = (
    *PEERS,
    *PLAIN_EPOCHS,
    "ditto",
    "fedcompass",
    "fedrep",
    "flora",
    "heterofl",
    "hetlora",
    "local",
    "moon",
    "pfedme",
    "scaffold",
)
"""Strategies without groups of devices."""

WITH_GLOBAL_MODEL = (
    "ca2fl",
    "cata-fed",
    "fedasync",
    "fedat",
    "fedavg",
    "fedbuff",
    "fedcompass",
    "feddr",
    "feddyn",
    "fednova",
    "fedprox",
    "flora",
    "heterofl",
    "hetlora",
    "hierfavg",
    "mifa",
    "moon",
    "q-fedavg",
    "refl",
    "rfedavg",
    "scaffold",
    "tifl",
)
"""Strategies whose run folder has a global model."""

WITH_PERSONAL_MODELS = ("ditto", "fedbn", "fedper", "fedrep", "pfedme")
"""Strategies whose run folder has a global model and one model per device."""

WITH_GROUP_MODELS = (
    "cfl",
    "fedgroup",
    "fesem",
    "fesem-mig",
    "fl-hc",
    "flexcfl",
    "fpfc",
    "hypcluster",
    "ifca",
    "ifca-mig",
    "lcfl",
    "pacfl",
)
"""Strategies whose run folder has one model per group."""

REQUESTS_IN_ROUNDS = (
    "ditto",
    "fedavg",
    "fedbn",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "mifa",
    "moon",
    "pfedme",
    "q-fedavg",
)
"""Strategies whose server sends requests to devices only in rounds.

All devices that are present are idle between rounds.
"""

UPDATES_ARE_MODELS = (*PEERS, "fpfc", "local")
"""Strategies in which each update becomes a separate model."""

UPDATES_WAIT = ("fedcompass",)
"""Strategies without rounds whose server may keep a received update while it makes versions."""
