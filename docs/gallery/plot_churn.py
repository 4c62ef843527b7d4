"""
What does churn cost?
=====================

Devices disconnect and come back. Their tasks are lost, and the round goes on without them.
How much of the time and of the bytes goes that way?
"""

# %%
# The set-up
# ----------
# The scenario ``quickstart``, whose devices can be reached four fifths of the time throughout: a
# mean of ``on`` and a quarter of that off. Only the pace of coming and going differs, and in one
# case they never disconnect. What is drawn is the mean of three worlds.
import matplotlib.pyplot as plt
import numpy as np

import fedsim

TARGET = 0.9
paces = {"never": 0, "16 min": 960, "4 min": 240, "1 min": 60, "20 s": 20}
stop = [f"stop={{accuracy={TARGET}, rounds=60}}"]


def availability(on: int) -> str:
    """What the scenario says of devices that are on for so many seconds on the mean."""
    said = f"{{kind='renewal', mean_on='{on} s', mean_off='{on / 4} s'}}" if on else "always"
    return f"population.availability={said}"


runs = {
    name: [
        fedsim.run(fedsim.load("quickstart", [availability(on), *stop], seed)) for seed in (1, 2, 3)
    ]
    for name, on in paces.items()
}

# %%
# The picture
# -----------
minutes, wasted, lost = [], [], []
for same in runs.values():
    moved = [run.summary["bytes"] for run in same]
    minutes.append(np.mean([run.costs_to(TARGET)["time"] / 60 for run in same]))
    wasted.append(100 * np.mean([one["wasted"] / (one["down"] + one["up"]) for one in moved]))
    lost.append(
        100
        * np.mean([run.rounds["disconnected"].sum() / run.rounds["selected"].sum() for run in same])
    )
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, values, title in zip(
    axes,
    (minutes, wasted, lost),
    (f"minutes to {TARGET:.0%}", "bytes wasted (%)", "tasks lost to churn (%)"),
    strict=True,
):
    axis.bar(list(runs), values, color=["tab:grey", *["tab:blue"] * 4])
    axis.set(title=title, xlabel="mean time on")
    axis.tick_params(axis="x", rotation=45)

# %%
# The answer
# ----------
names = list(runs)
print(
    f"Devices that stay on for {names[1]} lose {lost[1]:.0f} % of the tasks; those that stay "
    f"for {names[-1]} lose "
    f"{lost[-1]:.0f} %, and {wasted[-1]:.0f} % of all bytes with them (without churn "
    f"{wasted[0]:.0f} %, for being late)."
)
slower = minutes[-1] / minutes[0]
print(
    f"To {TARGET:.0%} accuracy it takes {minutes[0]:.1f} minutes without churn, "
    f"{minutes[2]:.1f} at {names[2]}, "
    + (
        f"and {minutes[-1]:.1f} at {names[-1]}."
        if slower == slower
        else f"and at {names[-1]} 60 rounds are not enough."
    )
)
