"""
What does a shared uplink cost?
===============================

Clients of a round begin together and end together, so their updates meet on the server's link.
Each client's own link is fast enough; how long a round takes is up to what they share.
"""

# %%
# The set-up
# ----------
# A model of 2 MB, devices with 5 Mbit/s up, and a server link of 10, 50 or 1,000 Mbit/s. Nothing is
# learnt: only times are asked for, so ten rounds of up to 160 clients take a moment.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedsim

cohorts = [5, 10, 20, 40, 80, 160]
links = {"10 Mbit/s": [], "50 Mbit/s": [], "1 Gbit/s": []}
base = {
    "seed": 1,
    "learning": "off",
    "model": {"kind": "size", "bytes": "2 MB"},
    "population": {
        "devices": 200,
        "samples": {"low": 100, "high": 200},
        "speed": {"kind": "lognormal", "median": "20 samples/s", "spread": 1.3},
    },
    "stop": {"rounds": 10},
}
folder = Path(tempfile.mkdtemp())
for link, minutes in links.items():
    for clients in cohorts:
        network = {
            "kind": "star",
            "server": {"down": link, "up": link},
            "device": {"down": "20 Mbit/s", "up": "5 Mbit/s", "latency": "40 ms"},
        }
        strategy = {"kind": "fedavg", "clients_per_round": clients, "local_epochs": 1}
        run = fedsim.run(
            fedsim.Scenario(**base, network=network, strategy=strategy),
            folder / f"{link[:2]}-{clients}",
        )
        minutes.append(run.rounds["time"].iloc[-1] / len(run.rounds) / 60)

# %%
# The pictures
# ------------
# First how long a round takes; then what thirty of the devices do in the first three rounds of
# forty clients over the narrowest link. They wait for the model together, train for a while each,
# and wait for each other again.
fig, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for link, minutes in links.items():
    axis.plot(cohorts, minutes, marker="o", label=link)
axis.set(
    xscale="log",
    xticks=cohorts,
    xticklabels=map(str, cohorts),
    xlabel="clients in a round",
    ylabel="minutes a round",
    ylim=0,
)
axis.minorticks_off()
axis.legend(title="server link")

# %%
plt.figure(
    fedsim.load_run(folder / "10-40").figure("timeline", rounds=(0, 3), devices=30, order="first")
)

# %%
# The answer
# ----------
narrow, wide = links["10 Mbit/s"], links["1 Gbit/s"]
print(
    f"With {cohorts[0]} clients a round takes {narrow[0]:.1f} minutes over 10 Mbit/s and "
    f"{wide[0]:.1f} over 1 Gbit/s: the "
    f"devices' own links and their training are what it waits for."
)
print(
    f"With {cohorts[-1]} clients it takes {narrow[-1]:.1f} minutes over 10 Mbit/s and "
    f"{wide[-1]:.1f} over 1 Gbit/s: from there "
    f"on a round is the time that {cohorts[-1]} models need on the shared link, "
    f"{cohorts[-1] * 16 * 2 / 10 / 60:.1f} minutes "
    "down and up together."
)
