"""
What does energy say that time does not?
========================================

More clients in a round cost little time: they work side by side. But each of them draws power,
computes, and keeps its radio awake. The fastest way to an accuracy need not be the cheapest.
"""

# %%
# The set-up
# ----------
# The world of the scenario ``quickstart``, whose devices are phones now: published watts of
# computing, sending and receiving, and of a radio that stays awake after a transfer. Rounds of 5 to
# 40 clients, until the target is reached.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedsim

TARGET = 0.9
cohorts = [5, 10, 20, 40]
folder = Path(tempfile.mkdtemp())
changes = ["energy.preset=smartphone-4g", f"stop={{accuracy={TARGET}, rounds=150}}"]
for clients in cohorts:
    fedsim.run(
        fedsim.load("quickstart", [f"strategy.clients_per_round={clients}", *changes]),
        folder / f"{clients}",
    )
runs = {clients: fedsim.load_run(folder / f"{clients}") for clients in cohorts}

# %%
# The pictures
# ------------
took = {clients: run.costs_to(TARGET) for clients, run in runs.items()}
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
left.plot(cohorts, [one["time"] / 60 for one in took.values()], marker="o")
left.set(ylabel=f"minutes to {TARGET:.0%}")
right.plot(cohorts, [one["joules"] / 1e3 for one in took.values()], marker="o", color="tab:red")
right.set(ylabel=f"kJ to {TARGET:.0%}")
for axis in (left, right):
    axis.set(xlabel="clients in a round", xticks=cohorts, ylim=0)

# %%
plt.figure(runs[cohorts[-1]].figure("energy"))

# %%
# The answer
# ----------
fast, cheap = (min(cohorts, key=lambda clients: took[clients][cost]) for cost in ("time", "joules"))
print(
    f"The fastest way to {TARGET:.0%} is {fast} clients in a round, after "
    f"{took[fast]['time'] / 60:.1f} minutes and for "
    f"{took[fast]['joules'] / 1e3:.1f} kJ."
)
print(
    f"The cheapest is {cheap}, for {took[cheap]['joules'] / 1e3:.1f} kJ, which takes "
    f"{took[cheap]['time'] / 60:.1f} minutes; "
    f"40 clients draw {took[40]['joules'] / took[cheap]['joules']:.1f} times as much as that."
)
