"""
What does a newcomer wait for?
==============================

A device that joins later waits twice: until it is given work for the first time, and until its
update has come into a model. How long that takes is up to the selection, not to the device.
"""

# %%
# The set-up
# ----------
# Sixty devices and thirty newcomers, one after another in ten minutes, into rounds of ten. Clients
# are drawn at random, those come first who were asked least often, or there are no rounds at all:
# FedBuff gives work to somebody as soon as another is through. Nothing is learnt: only times are
# asked for.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedsim

base = {
    "seed": 1,
    "learning": "off",
    "model": {"kind": "size", "bytes": "100 kB"},
    "population": {
        "devices": 90,
        "samples": {"low": 20, "high": 60},
        "speed": {"kind": "lognormal", "median": "6 samples/s", "spread": 1.6},
        "arrivals": {"kind": "poisson", "rate": "180 /h", "newcomers": 30},
    },
    "network": {
        "kind": "star",
        "device": {"down": "2 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
    },
    "stop": {"simulated_time": "30 min"},
}
rounds = {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 2}
ways = {
    "random": rounds,
    "least asked first": rounds | {"selection": "least-asked"},
    "FedBuff": {"kind": "fedbuff", "concurrency": 10, "buffer": 10, "local_epochs": 2},
}
folder = Path(tempfile.mkdtemp())
runs = {}
for name, strategy in ways.items():
    fedsim.run(fedsim.Scenario(**base, strategy=strategy), folder / name)
    runs[name] = fedsim.load_run(folder / name)

# %%
# The pictures
# ------------
# A newcomer's first task, and the end of the first one that it was through with, since it joined:
first, through, never = {}, {}, {}
for name, run in runs.items():
    arrival = run.devices.set_index("device")["arrival"]
    arrival = arrival[arrival > 0]
    tasks = run.events[run.events["device"].isin(arrival.index)]
    begun = tasks[tasks["kind"] == "task-start"].groupby("device")["time"].min()
    done = (
        tasks[(tasks["kind"] == "task-end") & (tasks["outcome"] == "done")]
        .groupby("device")["time"]
        .min()
    )
    first[name] = ((begun - arrival) / 60).dropna()
    through[name] = ((done - arrival) / 60).dropna()
    never[name] = len(arrival) - len(begun)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for axis, waits, title in (
    (left, first, "until its first task"),
    (right, through, "until its first update"),
):
    axis.boxplot(list(waits.values()), tick_labels=list(waits), whis=(0, 100))
    axis.set(title=title)
left.set_ylabel("minutes since it joined")

# %%
plt.figure(
    runs["least asked first"].figure("timeline", window=(0, 600), devices=40, order="number")
)

# %%
# The answer
# ----------
medians = {name: waits.median() for name, waits in first.items()}
print(
    f"Drawn at random, half of the newcomers wait more than {medians['random']:.1f} minutes "
    "for their first task, one waits "
    f"{first['random'].max():.0f}, and {never['random']} have none by the end; with FedBuff "
    "the median is "
    f"{medians['FedBuff']:.1f} minutes, and {never['FedBuff']} have none."
)
asked = "least asked first"
print(
    f"If those come first who were asked least, it is {medians[asked]:.1f} minutes, "
    f"{first[asked].max():.1f} at most: until "
    "the round that is under way ends. Their updates arrive "
    f"{(through[asked] - first[asked]).median():.1f} minutes later."
)
