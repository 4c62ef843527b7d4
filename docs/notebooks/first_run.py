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
# # A first run and its tables
#
# A scenario is run, and what it leaves is looked at with pandas. Everything here works in a script
# too.

# %%
import tempfile
from pathlib import Path

import fedsim

folder = Path(tempfile.mkdtemp()) / "quickstart"

# %% [markdown]
# `quickstart` comes with fedsim: fifty unequal devices, a shared server link, a deadline, devices
# that disconnect. What is given beside the name changes it, as `--set` does on the command line.
# Here it ends after fifteen rounds.

# %%
scenario = fedsim.load("quickstart", ["stop.rounds=15"])
scenario

# %%
result = fedsim.run(scenario, folder)
result

# %% [markdown]
# A row a round: how good the model was on test data, who came through, and what was moved. Times
# are simulated seconds, sizes bytes.

# %%
result.rounds[
    [
        "round",
        "time",
        "accuracy",
        "selected",
        "valid",
        "slow",
        "disconnected",
        "bytes_down",
        "bytes_up",
    ]
].tail()

# %% [markdown]
# What it took until a test first showed 80 %:

# %%
result.costs_to(0.8)

# %% [markdown]
# The folder has everything that happened. `load_run` reads it, now or next year. A row a device:

# %%
run = fedsim.load_run(folder)
devices = run.devices
devices[["device", "speed", "link_up", "samples", "selected", "accuracy"]].describe().loc[
    ["min", "50%", "max"]
]

# %% [markdown]
# A row a message says where bytes went. How much of it was of no use?

# %%
transfers = run.transfers
by_outcome = transfers.groupby(["direction", "outcome"], observed=True)["delivered"].sum() / 1e6
by_outcome.unstack().round(2)

# %%
moved = run.summary["bytes"]
assert abs(transfers["delivered"].sum() - moved["down"] - moved["up"]) < 1  # the books balance
print(
    f"{moved['wasted'] / (moved['down'] + moved['up']):.0%} of all bytes were wasted on "
    "clients that were late or lost"
)

# %% [markdown]
# A row an event. How tasks ended:

# %%
events = run.events
ends = events[events["kind"] == "task-end"]
ends["outcome"].value_counts()

# %%
done = ends[ends["outcome"] == "done"].merge(
    events[events["kind"] == "task-start"], on="task", suffixes=("", "_start")
)
took = done["time"] - done["time_start"]
print(
    f"the quickest task that came through took {took.min():.1f} s, the slowest {took.max():.1f} s"
)

# %% [markdown]
# And pictures. The grey is when a device could not be reached.

# %%
run.figure("timeline")

# %%
run.figure("traffic")

# %% [markdown]
# Running the scenario that the folder holds gives the same run, to the bit.

# %%
again = fedsim.run(run.scenario)
assert again.summary["events_sha256"] == run.summary["events_sha256"]
assert again.summary["models_sha256"] == run.summary["models_sha256"]
