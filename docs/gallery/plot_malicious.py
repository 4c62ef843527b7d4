"""
How robust against malicious clients?
=====================================

Some devices send not what they have learnt, but the opposite of it, five times as long. A mean
takes all they send into account; a median, a trimmed mean or Krum do not. What does each withstand,
and what does it cost where nobody attacks?
"""

# %%
# The set-up
# ----------
# Forty devices, fifteen of them in a round. From none to two fifths of all devices flip the sign of
# their updates: the same ones for every aggregation, since the seed is the same.
import matplotlib.pyplot as plt

import fedsim

shares = [0.0, 0.1, 0.2, 0.3, 0.4]
aggregations = {
    "weighted mean": "weighted",
    "median": "median",
    "trimmed mean": {"kind": "trimmed-mean", "share": 0.3},
    "multi-Krum": {"kind": "multi-krum", "malicious": 5},
}
base = {
    "seed": 1,
    "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "training": {"lr": 0.1, "batch_size": 10},
    "population": {"devices": 40},
    "stop": {"rounds": 25},
    "evaluation": {"every": 5},
}


def accuracy(share: float, aggregation: object) -> float:
    """What training ends with (%)."""
    strategy = {
        "kind": "fedavg",
        "clients_per_round": 15,
        "local_epochs": 2,
        "aggregation": aggregation,
    }
    attack = (
        {"malicious": {"share": share, "attack": {"kind": "sign-flip", "factor": 5.0}}}
        if share
        else {}
    )
    return (
        100
        * fedsim.run(fedsim.Scenario(**base, **attack, strategy=strategy)).summary["accuracy"][
            "final"
        ]
    )


ends = {name: [accuracy(share, kind) for share in shares] for name, kind in aggregations.items()}

# %%
# The picture
# -----------
fig, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, values), marker in zip(ends.items(), "osD^", strict=True):
    axis.plot([100 * share for share in shares], values, marker=marker, label=name)
axis.set(xlabel="malicious devices (%)", ylabel="accuracy at the end (%)", ylim=(0, 100))
axis.legend()

# %%
# The answer
# ----------
mean = ends["weighted mean"]
robust = {name: values for name, values in ends.items() if name != "weighted mean"}
at = 2
best = max(robust, key=lambda name: robust[name][at])
print(
    f"With a fifth of the devices malicious the mean ends at {mean[at]:.0f} %, and "
    + ", ".join(f"the {name} at {values[at]:.0f} %" for name, values in robust.items())
    + "."
)
print(
    "Where nobody attacks these cost "
    f"{mean[0] - min(values[0] for values in robust.values()):.1f} points at most; with two "
    f"fifths the best of them, the {max(robust, key=lambda name: robust[name][-1])}, still has "
    f"{max(values[-1] for values in robust.values()):.0f} %."
)
