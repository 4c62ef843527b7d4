"""
Which deadline?
===============

A deadline ends a round for those who are late: a short one throws much work away, a long one
waits for the slowest. Somewhere between them an accuracy costs the least time.
"""

# %%
# The set-up
# ----------
# The scenario ``quickstart``: fifty unequal devices, twenty of them in a round, with deadlines from
# 12 s to 5 minutes. Each run goes on until the target is reached, or for 40 minutes; what is drawn
# is the mean of three worlds.
import matplotlib.pyplot as plt
import numpy as np

import fedsim

TARGET = 0.9
deadlines, seeds = [12, 20, 30, 45, 80, 300], [1, 2, 3]
stop = [f"stop={{accuracy={TARGET}, simulated_time='40 min'}}"]
runs = {
    s: [
        fedsim.run(fedsim.load("quickstart", [f"strategy.deadline={s} s", *stop], seed))
        for seed in seeds
    ]
    for s in deadlines
}

# %%
# The picture
# -----------
minutes = [np.mean([run.costs_to(TARGET)["time"] / 60 for run in runs[s]]) for s in deadlines]
moved = {s: [run.summary["bytes"] for run in runs[s]] for s in deadlines}
wasted = [
    np.mean([one["wasted"] / (one["down"] + one["up"]) for one in moved[s]]) for s in deadlines
]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(deadlines, minutes, marker="o")
left.set(ylabel=f"minutes to {TARGET:.0%}", ylim=0)
right.plot(deadlines, [100 * share for share in wasted], marker="o", color="tab:red")
right.set(ylabel="bytes wasted (%)", ylim=0)
for axis in (left, right):
    axis.set(xscale="log", xlabel="deadline (s)", xticks=deadlines, xticklabels=map(str, deadlines))
    axis.minorticks_off()

# %%
# The answer
# ----------
reached = {s: took for s, took in zip(deadlines, minutes, strict=True) if took == took}
best = min(reached, key=reached.__getitem__)
print(
    f"Of these deadlines {best} s is the best: {TARGET:.0%} after {reached[best]:.1f} minutes, "
    f"where {deadlines[-1]} s takes "
    f"{reached[deadlines[-1]]:.1f}."
)
missed = [s for s in deadlines if s not in reached]
print(
    f"It wastes {wasted[deadlines.index(best)]:.0%} of the bytes, {deadlines[-1]} s wastes "
    f"{wasted[-1]:.0%} and "
    f"{deadlines[0]} s {wasted[0]:.0%}"
    + (
        f"; with {' and '.join(map(str, missed))} s the target is not reached in time in every "
        "world."
        if missed
        else "."
    )
)
