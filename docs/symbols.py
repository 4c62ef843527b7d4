"""Symbols of the strategies' pages, and what each stands for."""

import re

_GREEK = (
    "alpha|beta|gamma|delta|Delta|epsilon|eps|eta|theta|kappa|lambda|mu|nu|xi|pi|psi|rho|sigma|tau"
)
_SYMBOL = re.compile(rf"(?<![\w'.-])((?:{_GREEK})\d?|lr|[B-HJ-Zb-z])(?=_|(?![\w'-]|\.\w))")
_INDEX = re.compile(r"_([ijkrt])\b")
_I = re.compile(r"\b(I)(?=_| =| rounds)")  # elsewhere a Roman number
_NO_SYMBOLS = (
    r"(?s:```.*?```)",
    r"`[^`\n]*`",
    r"\]\([^)]*\)",
    r"^\|.*$",  # rows of tables
    r"^\(key-.*$",
    r"^# .*$",
    r"^Source: [^(]*",  # names of authors
    r"\(s\)",  # unit
    r"\d s\b",
    r"\b[EM]-step",
    r"\bT Dinh",
)
_KEYS = "\n## Keys"

_COMMON = {
    "d": "number of parameters of the model that is sent, 4 bytes each unless a codec packs them",
    "w": "parameters of the global model; with an index, or as *received*, those of one client",
    "v": "parameters over which a client minimises",
    "g": "gradient of the loss on a batch",
    "lr": "the clients' learning rate (`training.lr`)",
    "n": "training samples of a client",
    "p": "weight of a client's update in the mean",
    "i": "as an index, a client",
    "j": "as an index, another client",
    "k": "as an index, a client; elsewhere a number that the text names",
    "E": "a client's passes over its data in a round (`local_epochs`)",
    "K": "wanted number of updates in a round (`clients_per_round`)",
    "N": "number of all devices",
}
_GROUPS = {"m": "number of groups (`groups`)", "M": "number of groups (`groups`)"}
_STALE = {"tau": "staleness: versions made since the client's download"}
_FLEXCFL = _GROUPS | {
    "alpha": "devices of the cold start for each group (`pretrain_scale`)",
    "eta": "step of groups towards each other (`eta_g`)",
}
OWN: dict[str, dict[str, str]] = {
    "ca2fl": {
        "h": "latest change that the server holds of a device",
        "M": "updates in the buffer (`buffer`)",
        "n": "number of all devices",
        "v": "calibrated change of the model",
        "Delta": "change of the model by a client's training",
        "eta": "the server's learning rate (`server`)",
    },
    "cata-fed": {
        "P": "number of clusters (`clusters`)",
        "I": "whether an update is valid: 1, or 0 if no epoch was finished",
        "T": "time limit that the server sends with the model (s)",
        "pi": "least samples of a part of split data",
        "psi": "samples of the data on which a training was made",
        "eps": "measured time of a device's upload (s)",
        "n": "how often a device was selected",
        "u": "how often a device has split its data",
    },
    "diloco": {
        "H": "SGD steps between two all-reduces (`local_steps`)",
        "v": "velocity of the outer step",
        "m": "outer momentum (`outer_momentum`)",
        "x": "outer model",
        "lr": "outer learning rate (`outer_lr`)",
        "n": "number of devices",
    },
    "ditto": {
        "v": "a device's personal model",
        "F": "a device's loss",
        "lambda": "weight of the distance to the global model (`lam`)",
    },
    "d-psgd": {
        "k": "number of the round",
        "i": "a device",
        "j": "a neighbour of the device",
        "x": "a device's model",
        "W": "weight of a neighbour's model in the mean",
    },
    "epidemic": {
        "s": "devices to which a device sends its model (`sample_size`)",
        "S": "devices to which a device sends its model (`sample_size`)",
    },
    "fedasync": _STALE
    | {
        "alpha": "weight of a fresh update in the new model (`alpha`)",
        "s": "factor by which an update's weight falls with its staleness (`staleness`)",
        "t": "as an index, the version",
        "b": "greatest staleness with full weight (`hinge_from`)",
        "B": "greatest staleness with full weight (`hinge_from`)",
        "rho": "weight of the proximal term (`rho`)",
    },
    "fedat": {
        "M": "number of tiers (`tiers`)",
        "m": "number of a tier, from the fastest",
        "T": "number of updates of all tiers; with an index, of one tier",
        "mu": "weight of the proximal term (`mu`)",
        "lambda": "the paper's name of `mu`",
    },
    "fedbuff": _STALE
    | {
        "K": "updates in the buffer (`buffer`)",
        "eta": "the server's learning rate (`server`)",
        "s": "factor by which an update's weight falls with its staleness",
    },
    "fedcompass": _STALE
    | {
        "Q": "least and greatest number of SGD steps of a training (`min_steps`, `max_steps`)",
        "N": "clients at work at a time (`concurrency`)",
        "alpha": "factor of all updates (`alpha`)",
    },
    "feddr": {
        "f": "a client's loss",
        "g": "a penalty on the model, which is 0 here",
        "x": "proximal point of a client",
        "y": "point of a client, from which its proximal point is found",
        "eta": "step of the local problem (`eta`)",
        "alpha": "relaxation (`alpha`)",
    },
    "feddyn": {
        "theta": "the global model; with an index, the model that a client sends",
        "s": "mean of the sums of all clients' moves; with an index, one client's sum",
        "alpha": "weight of the regulariser (`alpha`)",
        "L": "a client's loss",
        "h": "the paper's vector in place of s",
        "w": "the global model, and in the objective the model that is trained",
    },
    "fedgroup": _FLEXCFL,
    "fednova": {
        "tau": "steps of a client; without an index or as *eff*, their weighted mean",
        "mu": "weight of the proximal term (`mu`)",
    },
    "fedprox": {"mu": "weight of the proximal term (`mu`)"},
    "fesem": {"M": "number of groups (`groups`)"},
    "fesem-mig": {"M": "number of groups (`groups`)"},
    "flexcfl": _FLEXCFL,
    "flora": {"B": "the second matrix of an adapter; A is the first"},
    "fpfc": {
        "f": "a device's loss",
        "w": "a device's model",
        "m": "number of devices",
        "theta": "difference of two devices' models in the groups' problem",
        "v": "dual variable of a pair of devices",
        "z": "model to which a device is held",
        "rho": "strength with which it is held (`rho`)",
        "delta": "difference of a pair before the proximal step",
        "lambda": "strength of the penalty (`lam`)",
    },
    "heterofl": {"r": "a device's width, a share of the channels (`sizes`)"},
    "hetlora": {
        "r": "a device's rank (`sizes`)",
        "B": "the second matrix of an adapter; A is the first",
    },
    "hierfavg": {
        "kappa1": "SGD steps of a client in an edge round (`kappa1`)",
        "kappa2": "edge rounds in a round (`kappa2`)",
    },
    "hypcluster": {"M": "number of groups (`groups`)", "q": "number of hypotheses (`groups`)"},
    "ifca": _GROUPS,
    "ifca-mig": _GROUPS,
    "lcfl": {
        "w": "the last model that a device sent",
        "L": "a device's objective on its training data",
        "M": "number of devices with such a model",
        "k": "number of clusters (`groups`)",
        "K": "number of clusters (`groups`)",
    },
    "local-sgd": {
        "H": "SGD steps between two all-reduces (`local_steps`)",
        "n": "number of devices",
    },
    "mifa": {
        "G": "latest update of a device, over the learning rate with which it was made",
        "eta": "learning rate of the round",
    },
    "moon": {
        "mu": "weight of the contrastive term (`mu`)",
        "tau": "number by which similarities are divided (`temperature`)",
        "e": "base of the natural logarithm",
        "s": "similarity to the received model",
        "t": "similarity to the client's last model",
    },
    "pacfl": {
        "p": "singular vectors of a class or device (`vectors`)",
        "P": "singular vectors of a class or device (`vectors`)",
    },
    "pfedme": {
        "w": "the global model; with an index, the local model after that many local rounds",
        "R": "local rounds of a client in a round (`local_rounds`)",
        "r": "as an index, the local round",
        "theta": "personal model",
        "f": "a client's loss on a batch",
        "lambda": "weight of the pull to the local model (`lam`)",
        "K": "SGD steps on a batch (`steps`); at `clients_per_round` the wanted number of updates",
        "eta": "learning rate of the local model (`eta`)",
        "beta": "step of the server towards the clients' mean (`server`)",
    },
    "q-fedavg": {
        "q": "strength of fairness (`q`)",
        "F": "a client's loss of the received model",
        "L": "estimate of the Lipschitz constant (`lipschitz`)",
    },
    "refl": _STALE,
    "rfedavg": {
        "D": "samples of all devices; with an index, of one device",
        "I": "class imbalance of a device",
        "F": "a device's loss",
        "p": "weight of a cluster's model",
        "P": "weight of a cluster's model",
        "l": "mean of the reported losses; with 0, the first",
        "M": "number of classes",
        "N": "number of clusters",
        "L": "loss at which the threshold is reached",
    },
    "scaffold": {
        "c": "the server's control variate; with an index, a client's",
        "Delta": "change of a client's control variate",
        "K": "clients of a round (`clients_per_round`); in K lr, a client's SGD steps",
    },
    "tifl": {"P": "number of tiers (`tiers`)", "I": "rounds between two tests of the tiers"},
}


def symbols_of(text: str) -> set[str]:
    """Return the symbols in formulas and sentences of a strategy's page.

    Args:
        text: the page in Markdown, as it is generated. The keys of its tables within tables are
            left out.
    """
    about, _, keys = text.partition(_KEYS)
    keys = re.split(r"^### `strategy\.", keys, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in keys.splitlines() if not line.startswith(": ")]
    plain = "\n".join([about, *lines])
    for pattern in _NO_SYMBOLS:
        plain = re.sub(pattern, " ", plain, flags=re.MULTILINE)
    plain = plain.replace("\\_", "_")
    found: set[str] = set()
    for symbol in (_SYMBOL, _INDEX, _I):
        found.update(symbol.findall(plain))
    return found


def symbol_list(kind: str, text: str) -> str:
    """Return the section that explains the symbols of a strategy's page; empty if it has none.

    Args:
        kind: the strategy.
        text: the page without this section.
    """
    meanings = _COMMON | OWN.get(kind, {})
    entries = [f"`{name}`\n: {meanings[name]}" for name in meanings if name in symbols_of(text)]
    return "\n\n".join(["## Symbols", *entries]) if entries else ""
