"""Pictures of the strategies' pages; ``draw.py`` draws them."""

STARTED = (
    "population.devices=16",
    "population.speed.spread=1.8",
    "stop.rounds=4",
)
"""Changes of the quickstart for all pictures."""
_ROUNDS = ("strategy.clients_per_round=8", "strategy.deadline=80 s")
TIMELINES = {
    "cata-fed": _ROUNDS,
    "cfl": _ROUNDS,
    "diloco": ("population.availability=always", "strategy.local_steps=20"),
    "fedavg": _ROUNDS,
    "fedbuff": ("strategy.buffer=4", "strategy.concurrency=8"),
    "flexcfl": _ROUNDS,
    "gossip": ("strategy.deadline=60 s",),
    "hierfavg": (
        "network.kind=tree",
        "network.cells=4",
        'network.edge={ latency = "100 ms" }',
        "strategy.clients_per_round=8",
    ),
    "lcfl": (),
    "rfedavg": _ROUNDS,
}
"""Kind of each strategy with a picture -> further changes."""


def changes(kind: str) -> list[str]:
    """Return the changes of the quickstart for the picture of a strategy.

    Args:
        kind: the strategy.
    """
    table = f'strategy={{ kind = "{kind}" }}'
    return [*STARTED, table, *TIMELINES[kind]]


def picture(kind: str) -> str:
    """Return the picture of a strategy's page, with its caption; empty if it has none.

    Args:
        kind: the strategy.
    """
    if kind not in TIMELINES:
        return ""
    alt = f"Tasks of a run of {kind}: one lane per device, downloads, training and uploads"
    words = " ".join(f"--set '{change}'" for change in changes(kind))
    command = f"fedsim run quickstart {words}"
    return (
        f"![{alt}](/pictures/strategy-{kind}.png)\n\n"
        f'`load_run(RUN).figure("timeline")` of\n\n```text\n{command}\n```'
    )
