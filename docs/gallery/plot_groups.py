"""
How many groups?
================

Where devices are of several kinds, a model for each kind beats one for all. But nobody tells the
server how many kinds there are: what do too few groups cost, and what too many?
"""

# %%
# The set-up
# ----------
# Fifty devices of five kinds, each kind with two digits of its own. IFCA sends every client all
# group models, and the client takes the one that fits its data best: so more groups are more bytes,
# in every round.
import matplotlib.pyplot as plt

import fedsim

counts = [1, 2, 3, 5, 8, 12]
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "label-groups", "groups": 5}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {"devices": 50, "speed": "10 samples/s"},
    "stop": {"rounds": 40},
}
strategy = {"kind": "ifca", "clients_per_round": 15, "local_epochs": 2}
runs = {m: fedsim.run(fedsim.Scenario(**base, strategy=strategy | {"groups": m})) for m in counts}

# %%
# The picture
# -----------
accuracy = [100 * runs[m].rounds["accuracy"].iloc[-1] for m in counts]
moved = [sum(runs[m].summary["bytes"][way] for way in ("down", "up")) / 1e6 for m in counts]
purity = [runs[m].rounds["purity"].iloc[-1] for m in counts]
fig, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, values, title in zip(
    axes,
    (accuracy, purity, moved),
    ("accuracy at the end (%)", "purity", "moved (MB)"),
    strict=True,
):
    axis.plot(counts, values, marker="o")
    axis.axvline(5, color="grey", linewidth=0.8, linestyle=":")
    axis.set(title=title, xlabel="groups (there are 5 kinds)", xticks=counts)

# %%
# The answer
# ----------
one, true, most = (counts.index(m) for m in (1, 5, counts[-1]))
best = counts[accuracy.index(max(accuracy))]
print(
    f"With one model for all accuracy ends at {accuracy[one]:.1f} %, with as many groups as "
    "there are kinds at "
    f"{accuracy[true]:.1f} %, and with {best} it is best, at {max(accuracy):.1f} %."
)
print(
    f"Too many groups cost bytes rather than accuracy: {counts[most]} move "
    f"{moved[most] / moved[true]:.1f} times as much as "
    f"5 and end at {accuracy[most]:.1f} %."
)
