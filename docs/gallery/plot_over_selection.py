"""
Is over-selection worth its bytes?
==================================

A server that wants twenty updates can ask more clients, and close the round as soon as twenty
are there. It no longer waits for the slowest; what they were doing is wasted.
"""

# %%
# The set-up
# ----------
# The world of the scenario ``quickstart``, without a deadline: each round ends when twenty updates
# are there, of 20 to 40 clients that were asked. What is drawn is the mean of three worlds.
import matplotlib.pyplot as plt
import pandas as pd

import fedsim

TARGET = 0.9
factors = [1.0, 1.25, 1.5, 2.0]
changes = ["strategy.deadline=", f"stop={{accuracy={TARGET}, rounds=60}}"]
runs = {
    factor: [
        fedsim.run(fedsim.load("quickstart", [f"strategy.over_selection={factor}", *changes], seed))
        for seed in (1, 2, 3)
    ]
    for factor in factors
}

# %%
# The picture
# -----------
# Each point is a way to reach the target: time against bytes.
took = {
    factor: pd.DataFrame([run.costs_to(TARGET) for run in same]).mean()
    for factor, same in runs.items()
}
wasted = {
    factor: sum(run.summary["bytes"]["wasted"] for run in same) / len(same)
    for factor, same in runs.items()
}
fig, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
axis.plot(
    [one["time"] / 60 for one in took.values()],
    [one["bytes"] / 1e6 for one in took.values()],
    marker="o",
)
for factor, one in took.items():
    axis.annotate(f"  {20 * factor:.0f} asked", (one["time"] / 60, one["bytes"] / 1e6))
axis.margins(0.3)
axis.set(xlabel=f"minutes to {TARGET:.0%}", ylabel=f"MB to {TARGET:.0%}", xlim=0, ylim=0)

# %%
# The answer
# ----------
plain, best = took[1.0], min(factors, key=lambda factor: took[factor]["time"])
little = took[1.25]
print(
    f"To ask 25 instead of 20 makes {TARGET:.0%} {plain['time'] / little['time']:.1f} times as "
    "fast, for "
    f"{little['bytes'] / plain['bytes']:.2f} times the bytes."
)
print(
    f"The fastest is to ask {20 * best:.0f}: {plain['time'] / took[best]['time']:.1f} times as "
    "fast, for "
    f"{took[best]['bytes'] / plain['bytes']:.2f} times the bytes, of which "
    f"{wasted[best] / took[best]['bytes']:.0%} are wasted."
)
