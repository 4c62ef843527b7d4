"""
Who speaks next? A character model by three strategies
======================================================

Fourteen speakers of Shakespeare's, a device each, learn to tell the next character. How soon a
model of characters is any good depends on the model and on the strategy: a round of FedAvg waits
for the slowest of its seven, Adam on the server goes its own way from what a round finds, and
FedBuff waits for nobody.
"""

# %%
# The set-up
# ----------
# The world of the scenario ``characters``, with an LSTM and with a small transformer. Local steps
# are plain SGD in all runs, at a learning rate that suits the model. The measure is perplexity: e
# to the mean cross-entropy of a character, so 61 for one who guesses evenly, and 23 for one who
# knows how often each character comes.
import matplotlib.pyplot as plt

import fedsim

models = {"LSTM": "4.0", "transformer": "1.0"}
kinds = {"LSTM": "char-lstm", "transformer": "transformer"}
fedavg = 'kind="fedavg", clients_per_round=7'
strategies = {
    "FedAvg": [f"strategy={{{fedavg}}}", "stop.rounds=12"],
    "FedAdam": [f'strategy={{{fedavg}, server={{kind="adam", lr=0.03}}}}', "stop.rounds=12"],
    "FedBuff": [
        'strategy={kind="fedbuff", concurrency=7, buffer=3}',
        "stop.rounds=28",
        "evaluation.every=2",
    ],
}
runs = {
    (model, name): fedsim.run(
        fedsim.load("characters", [f"model.kind={kinds[model]}", f"training.lr={lr}", *changes])
    )
    for model, lr in models.items()
    for name, changes in strategies.items()
}

# %%
# The picture
# -----------
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for axis, model in zip(axes, models, strict=True):
    for name in strategies:
        rounds = runs[model, name].rounds.dropna(subset="perplexity")
        axis.plot(rounds["time"] / 60, rounds["perplexity"], label=name)
    axis.set(title=model, xlabel="simulated time (min)", ylim=(8, 30))
axes[0].set_ylabel("perplexity of a character")
axes[0].legend()

# %%
# The answer
# ----------
for model in models:
    best = {name: runs[model, name].summary["metrics"]["perplexity"]["best"] for name in strategies}
    goal = 1.02 * max(best.values())
    took = {
        name: runs[model, name].costs_to(f"perplexity={goal}")["time"] / 60 for name in strategies
    }
    first = min(took, key=took.get)
    values = ", ".join(f"{value:.1f} by {name}" for name, value in best.items())
    times = ", ".join(f"{name} {each:.1f}" for name, each in took.items())
    print(
        f"{model}: perplexity {values}. Minutes of simulated time to {goal:.1f}: {times}; "
        f"{first} is there first."
    )
