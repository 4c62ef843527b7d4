# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A study compared
#
# Strategies in the same worlds, over several seeds: what each needs to reach an accuracy, and how
# sure that is.

# %%
import tempfile
from pathlib import Path

import fedsim

folder = Path(tempfile.mkdtemp())
base = {
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {
        "devices": 40,
        "speed": {"kind": "lognormal", "median": "8 samples/s", "spread": 2.0},
    },
    "network": {
        "kind": "star",
        "device": {"down": "500 kbit/s", "up": "100 kbit/s", "latency": "40 ms"},
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 2},
    "stop": {"rounds": 25},
}

# %% [markdown]
# A study is a base and what is changed of it. The same seed gives every variant the same world, so
# they can be compared seed by seed. Runs are done side by side; called again, it goes on where it
# was left.

# %%
study = fedsim.run_study(
    {
        "name": "who is waited for",
        "base": base,
        "seeds": [1, 2, 3],
        "baseline": "fedavg",
        "target": [0.85],
        "variants": {
            "fedavg": {},
            "over-selection": {"strategy.over_selection": 1.5},
            "fedbuff": {
                "strategy": {"kind": "fedbuff", "concurrency": 10, "buffer": 5, "local_epochs": 2},
                "stop.rounds": 50,
            },
        },
    },
    folder / "study",
)
study

# %% [markdown]
# Means over the seeds, with the ends of 95 % intervals beside them:

# %%
table = study.table.set_index("variant")
table[
    [
        column
        for column in table
        if column.startswith(("final accuracy", "time to target", "traffic to target"))
    ]
].round(3).T

# %% [markdown]
# Seed by seed against the baseline. What the worlds have in common cancels out, so these intervals
# are narrower:

# %%
paired = study.paired
times = paired[paired["measure"] == "time to target 0.85"].set_index("variant")
times[["mean difference", "low", "high", "ratio"]].round(2)

# %%
for variant, row in times.iterrows():
    sure = "in every likely case" if row["high"] < 0 else "though the interval holds 0"
    print(f"{variant}: {-row['mean difference']:.0f} s sooner than FedAvg on the mean, {sure}")

# %% [markdown]
# All runs as bands, and one of them at a closer look:

# %%
study.figure("costs")

# %%
study.run("fedbuff", seed=2).figure("timeline")

# %% [markdown]
# A study can search, too. Which step size and how many clients reach the target soonest? Trials are
# drawn at random here; `kind = "optuna"` learns from those before.

# %%
searched = fedsim.run_study(
    {
        "name": "what reaches it soonest",
        "base": base,
        "target": 0.85,
        "variants": {"fedavg": {}},
        "search": {
            "kind": "random",
            "trials": 10,
            "metric": "time_to_accuracy",
            "space": {
                "training.lr": {"low": 0.01, "high": 1.0, "log": True},
                "strategy.clients_per_round": {"low": 2, "high": 30},
            },
        },
    },
    folder / "search",
)
searched.trials.head()

# %%
best = searched.trials.iloc[0]
print(
    f"best of {len(searched.trials)}: learning rate {best['training.lr']:g}, "
    f"{best['strategy.clients_per_round']} clients a "
    f"round, {best['time_to_accuracy']:.0f} s to 85 %"
)
