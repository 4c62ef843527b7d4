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

``spec`` is what such a file may say, ``changes`` how a variant alters the base, ``references`` the lines to compare with, and
``plan`` puts them together into the runs of a study. ``pool`` carries runs out in ``worker`` processes, ``folder`` is what a
study leaves on disk, with the ``index`` that others read it by, ``conduct`` does all of it in order, and ``progress`` shows how
far it is.
"""
