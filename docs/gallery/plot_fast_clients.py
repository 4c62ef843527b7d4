"""
Does selecting fast clients bias the model?
===========================================

Whoever selects fast clients gets short rounds. But if the slow have other data than the fast,
the model learns little of theirs.
"""

# %%
# The set-up
# ----------
# Fifty devices of five kinds, each kind with two digits of its own; those of the last kind are ten
# times as slow as the others. Clients are drawn at random; or by FedCS, which asks twenty how fast
# they are and takes those who will be through in 15 s; or thirty are asked, and the first ten
# count.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedsim

KINDS, SLOW = 5, 4
speeds = [f"{1 if device % KINDS == SLOW else 10} samples/s" for device in range(50)]
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "label-groups", "groups": KINDS}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {"devices": 50, "speed": speeds},
    "network": {
        "kind": "star",
        "device": {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"},
    },
    "stop": {"rounds": 60},
}
fedavg = {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 2}
ways = {
    "random": fedavg,
    "FedCS": fedavg | {"selection": {"kind": "fedcs", "time": "15 s"}},
    "first 10 of 30": fedavg | {"over_selection": 3.0},
}
folder = Path(tempfile.mkdtemp())
runs = {}
for name, strategy in ways.items():
    fedsim.run(fedsim.Scenario(**base, strategy=strategy), folder / name)
    runs[name] = fedsim.load_run(folder / name)

# %%
# The pictures
# ------------
# The accuracy of the one model on the data of the fast and of the slow devices, and how long a
# round takes.
devices = {
    name: run.devices.assign(slow=run.devices["device"] % KINDS == SLOW)
    for name, run in runs.items()
}
accuracy = {name: 100 * table.groupby("slow")["accuracy"].mean() for name, table in devices.items()}
a_round = {name: run.rounds["time"].iloc[-1] / len(run.rounds) for name, run in runs.items()}
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for shift, slow in ((-0.2, False), (0.2, True)):
    places = [place + shift for place in range(len(ways))]
    left.bar(
        places,
        [accuracy[name][slow] for name in ways],
        width=0.4,
        label="slow devices" if slow else "fast devices",
    )
left.set(
    xticks=range(len(ways)), xticklabels=ways, ylabel="accuracy on their data (%)", ylim=(0, 125)
)
left.legend(loc="upper center", ncols=2)
right.bar(list(ways), list(a_round.values()), color="tab:grey")
right.set(ylabel="seconds a round")

# %%
plt.figure(runs["FedCS"].figure("fairness"))

# %%
# The answer
# ----------
print(
    f"FedCS makes rounds {a_round['random'] / a_round['FedCS']:.0f} times as short, and the "
    "model is right in "
    f"{accuracy['FedCS'][True]:.0f} % of what slow devices have (fast ones: "
    f"{accuracy['FedCS'][False]:.0f} %); drawn at random "
    f"it is {accuracy['random'][True]:.0f} % (fast ones: {accuracy['random'][False]:.0f} %)."
)
name = "first 10 of 30"
print(
    f"The first ten of thirty are as fast ({a_round[name]:.0f} s a round, FedCS "
    f"{a_round['FedCS']:.0f} s) and as biased "
    f"({accuracy[name][True]:.0f} % on slow devices). The mean over all devices says little of it: "
    f"{devices[name]['accuracy'].mean():.0%} here against "
    f"{devices['random']['accuracy'].mean():.0%}."
)
