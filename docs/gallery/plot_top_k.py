"""
Top-k or fewer rounds?
======================

Where the uplink is what costs, there are two ways to send less: send only the largest changes of
each update (top-k, with what was left out kept for the next time), or send whole updates and stop
earlier. Which buys more accuracy for a byte?
"""

# %%
# The set-up
# ----------
# Twenty clients a round on the scikit-learn digits; a device sends all of its update, the largest
# tenth, or the largest hundredth of it. What comes down is the whole model in all runs: only bytes
# up are counted here.
import matplotlib.pyplot as plt

import fedsim

codecs = {
    "all": "plain",
    "top 10 %": {"kind": "top-k", "share": 0.1},
    "top 1 %": {"kind": "top-k", "share": 0.01},
}
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
    "model": {"kind": "mlp", "hidden": [64]},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {"devices": 40},
    "strategy": {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 2},
    "stop": {"rounds": 60},
}
runs = {
    name: fedsim.run(fedsim.Scenario(**base, messages={"up": codec}))
    for name, codec in codecs.items()
}

# %%
# The picture
# -----------
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for name, run in runs.items():
    sent = run.rounds["bytes_up"].cumsum() / 1e6
    left.plot(sent, run.rounds["accuracy"], label=name)
    right.plot(run.rounds["round"] + 1, run.rounds["accuracy"], label=name)
left.set(xscale="log", xlabel="sent up so far (MB)", ylabel="test accuracy")
right.set(xlabel="round")
right.legend()

# %%
# The answer
# ----------
# At the budget that the run with a tenth has used up in the end:
sent = {name: run.rounds["bytes_up"].cumsum() for name, run in runs.items()}
budget = sent["top 10 %"].iloc[-1]
whole = runs["all"].rounds[sent["all"] <= budget]
tenth, hundredth = (runs[name].rounds["accuracy"].iloc[-1] for name in ("top 10 %", "top 1 %"))
print(
    f"For {budget / 1e6:.1f} MB up, {len(whole)} rounds of whole updates reach "
    f"{whole['accuracy'].max():.1%}, and "
    f"{len(runs['top 10 %'].rounds)} rounds of the largest tenth {tenth:.1%}."
)
print(
    f"The largest hundredth takes {sent['top 1 %'].iloc[-1] / 1e6:.2f} MB for {hundredth:.1%}, "
    "so top-k buys more for a byte "
    f"than stopping early, as long as {len(runs['top 1 %'].rounds)} rounds of waiting are free."
)
