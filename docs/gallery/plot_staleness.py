"""
What does staleness weighting do?
=================================

Without rounds an update arrives when the model has moved on since: it is stale. FedAsync lets it
count the less the staler it is. How much less is a parameter; is it a matter of speed, or of
steadiness?
"""

# %%
# The set-up
# ----------
# A hundred devices, forty of them at work at any time, at speeds from 1 to 20 samples/s, each with
# few of the digits: a slow device's update is fifty versions old. An update of staleness t weighs
# (1 + t) to the power of -a; with a = 0 all weigh the same.
import matplotlib.pyplot as plt

import fedsim

exponents = [0.0, 0.5, 1.0]
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.1}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {
        "devices": 100,
        "speed": {"kind": "uniform", "low": "1 samples/s", "high": "20 samples/s"},
    },
    "stop": {"rounds": 1500},
    "evaluation": {"every": 25},
}
strategy = {"kind": "fedasync", "concurrency": 40, "local_epochs": 3}
runs = {
    a: fedsim.run(fedsim.Scenario(**base, strategy=strategy | {"exponent": a})) for a in exponents
}

# %%
# The picture
# -----------
fig, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for a, run in runs.items():
    rounds = run.rounds.dropna(subset="accuracy")
    axis.plot(rounds["time"] / 60, rounds["accuracy"], label=f"a = {a:g}")
axis.set(xlabel="simulated time (min)", ylabel="test accuracy")
axis.legend(title="an update weighs\n$(1 + t)^{-a}$")

# %%
# The answer
# ----------
# The second half of each run: where it is, and how far it jumps from one test to the next.
late = {a: run.rounds.dropna(subset="accuracy")["accuracy"].iloc[30:] for a, run in runs.items()}
jump = {a: 100 * accuracy.diff().abs().mean() for a, accuracy in late.items()}
mean = {a: 100 * accuracy.mean() for a, accuracy in late.items()}
print(
    f"With equal weights accuracy jumps by {jump[0.0]:.1f} points from test to test around "
    f"{mean[0.0]:.0f} %; with a = 0.5 it "
    f"jumps by {jump[0.5]:.1f} points around {mean[0.5]:.0f} %."
)
print(
    f"With a = 1 it jumps by {jump[1.0]:.1f} points around {mean[1.0]:.0f} %: the steadier, "
    "the slower to take in what is new."
)
