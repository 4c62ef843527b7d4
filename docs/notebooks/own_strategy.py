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
# # A strategy of your own
#
# FedAvg, whose clients exaggerate: what one has learnt it sends longer than it is, by a factor that
# falls with the times that it has been heard. It is a file with two halves, and needs nothing
# beside `fedsim.plugin`.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import fedsim

# %% [markdown]
# The client half sees its own device and what it received; it keeps a state of its own. The server
# half sees what arrives. The arithmetic with models is written down here, and carried out only when
# somebody asks for a value.

# %%
file = Path(tempfile.mkdtemp()) / "bold.py"
file.write_text('''
"""FedAvg with clients that exaggerate."""

from typing import ClassVar

from fedsim.plugin import AggregatingParams, SynchronousClient, SynchronousParams
from fedsim.plugin import Contents, Device, FedAvg, Header, Instruction, LocalResult


class BoldParams(AggregatingParams):
    """What it takes."""

    kind: str = "bold:Bold"
    boldness: float = 1.0
    """by how much a first update is longer than it is; a device's later ones by less."""


class BoldClient(SynchronousClient[BoldParams]):
    """Sends its update longer than it is."""

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        """w + (1 + b) (w_i - w), with b = boldness / (1 + times heard)."""
        times = device.state.get("times", 0)
        extra = self.params.boldness / (1 + times)
        bold = device.mix([(result.update, 1 + extra), (instruction["model"], -extra)])
        return {"update": bold, "times": Header(times), "samples": Header(result.samples)}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """One time more."""
        device.state["times"] = device.state.get("times", 0) + 1


class Bold(FedAvg[BoldParams]):
    """FedAvg, which writes down how often those have been heard whose updates it takes."""

    Params: ClassVar[type[SynchronousParams]] = BoldParams
    Client = BoldClient

    async def aggregate(self) -> None:
        """Note it, and do what FedAvg does."""
        self.server.emit("heard", times=[entry["contents"]["times"] for entry in self.state["received"]])
        await super().aggregate()
''')

# %% [markdown]
# A scenario names it by the path of its file. Its parameters are keys like all others: units,
# bounds and misspelled names are seen to.

# %%
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "training": {"lr": 0.05, "batch_size": 10},
    "population": {
        "devices": 40,
        "speed": {"kind": "lognormal", "median": "8 samples/s", "spread": 2.0},
    },
    "stop": {"rounds": 50},
}
terms = {"clients_per_round": 10, "local_epochs": 1}
bold = {"kind": f"{file}:Bold", **terms}
try:
    fedsim.Scenario(**base, strategy=bold | {"bouldness": 2.0})
except fedsim.ScenarioError as error:
    print(error)

# %% [markdown]
# In the same world as FedAvg: the same devices, data and streams of chance.

# %%
runs = {"FedAvg": fedsim.run(fedsim.Scenario(**base, strategy={"kind": "fedavg", **terms}))}
for boldness in (1.0, 3.0):
    runs[f"boldness {boldness:g}"] = fedsim.run(
        fedsim.Scenario(**base, strategy=bold | {"boldness": boldness})
    )
fig, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, run in runs.items():
    axis.plot(run.rounds["time"] / 60, run.rounds["accuracy"], label=name)
axis.set(xlabel="simulated time (min)", ylabel="test accuracy")
axis.legend()

# %%
for name, run in runs.items():
    print(
        f"{name}: 80 % after {run.costs_to(0.8)['time'] / 60:.1f} min, "
        f"{run.summary['accuracy']['final']:.1%} at the end"
    )

# %% [markdown]
# Without boldness it is FedAvg, and the models should be the same to within rounding. That is worth
# a test in a strategy's first minute.

# %%
none = fedsim.run(fedsim.Scenario(**base, strategy=bold | {"boldness": 0.0}))
difference = (none.rounds["accuracy"] - runs["FedAvg"].rounds["accuracy"]).abs().max()
assert difference < 0.005, difference

# %% [markdown]
# What the server emitted is among the events of a run that is kept.

# %%
kept = Path(tempfile.mkdtemp()) / "kept"
fedsim.run(fedsim.Scenario(**base | {"stop": {"rounds": 8}}, strategy=bold), kept)
events = fedsim.load_run(kept).events
heard = events[events["kind"] == "heard"]
[data["times"] for data in heard["data"]][-1]
