"""Studies: strategies compared in the same worlds.

A study file is a base scenario, the variants of it, and the seeds that each is run with::

    name = "what does a group cost"
    base = "base.toml"                        # relative to this file; or a table [base]
    seeds = [1, 2, 3]                         # the same seed is the same world for every variant
    baseline = "fedavg"                       # the others are compared with it, seed by seed
    target = [0.8, 0.9]                       # accuracies: what it costs to reach each
    references = ["centralised", "local"]     # lines to compare with

    [variants.fedavg]                         # the base as it is, or with changes: tables as in a scenario, or dotted keys
    "strategy.kind" = "fedavg"
    [variants.flexcfl]
    strategy = { kind = "flexcfl", groups = 3 }

    [grid]                                    # every variant with every combination
    "population.stragglers.share" = [0.0, 0.3]

Where not every variant meets the same grid, a study says what is run part by part, and in which sizes; changes that go together
in the grid have names. Runs of the same scenario are one run::

    published = "published.toml"              # what papers say of it, see ``fedsim.compare.published``

    [sets.data]                               # for the grid: changes by name
    mnist = { "data.source" = "mnist" }
    cifar = { "data.source" = "cifar10", "training.lr" = 0.01 }
    [sizes.small]
    [sizes.full]                              # --size full
    base = "full.toml"
    changes = { "stop.rounds" = 300 }         # as the base says it: parts and variants have the last word
    [parts.deadline]
    variants = ["fedavg"]                     # or a table: what each changes here besides
    changes = { "strategy.deadline" = "9 s" }
    grid = { data = ["mnist", "cifar"] }
    [parts.late]
    extends = "deadline"                      # that part, with what is said here merged into it
    changes = { "strategy.deadline" = "20 s" }

A study can also search: ``[search]`` names keys with ranges or lists of values, and each variant is tried at so many points of
them, one after another, each told what those before came to (``search``, ``trials``).

``spec`` is what such a file may say, ``references`` the lines to compare with, and ``plan`` puts them together into the runs of
a study. ``pool`` carries runs out in ``worker`` processes, ``cluster`` on Ray; ``folder`` is what a study leaves on disk,
``conduct`` does all of it in order, and ``progress`` shows how far it is.
"""
