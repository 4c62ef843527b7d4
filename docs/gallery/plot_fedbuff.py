"""
Is FedBuff worth it here?
=========================

FedAvg waits for the slowest client of each round. FedBuff waits for nobody: who is through is
replaced at once, and every ten updates make a version, some of them stale. Whether that pays
depends on how unequal devices are.
"""

# %%
# The set-up
# ----------
# The world of the scenario ``asynchronous``, once as it is, with speeds from 1 to 10 samples/s, and
# once with equal speeds, where only the sizes of the devices' data differ. In both, twenty clients
# work at a time.
import matplotlib.pyplot as plt

import fedsim

TARGET = 0.9
fedavg = ['strategy={kind="fedavg", clients_per_round=20, local_epochs=3}', "stop.rounds=40"]
worlds = {"speeds 1 to 10": [], "equal speeds": ['population.speed="5.5 samples/s"']}
runs = {
    (world, name): fedsim.run(fedsim.load("asynchronous", [*changes, *strategy]))
    for world, changes in worlds.items()
    for name, strategy in {"FedAvg": fedavg, "FedBuff": ["stop.rounds=80"]}.items()
}

# %%
# The picture
# -----------
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for axis, world in zip(axes, worlds, strict=True):
    for name in ("FedAvg", "FedBuff"):
        rounds = runs[world, name].rounds
        axis.plot(rounds["time"] / 60, rounds["accuracy"], label=name)
    axis.axhline(TARGET, color="grey", linewidth=0.8, linestyle=":")
    axis.set(title=world, xlabel="simulated time (min)", xlim=(0, 8))
axes[0].set_ylabel("test accuracy")
axes[0].legend()

# %%
# The answer
# ----------
took = {key: run.costs_to(TARGET) for key, run in runs.items()}
faster = {world: took[world, "FedAvg"]["time"] / took[world, "FedBuff"]["time"] for world in worlds}
dearer = {
    world: took[world, "FedBuff"]["bytes"] / took[world, "FedAvg"]["bytes"] for world in worlds
}
print(
    f"Where speeds spread by a factor of ten, FedBuff reaches {TARGET:.0%} "
    f"{faster['speeds 1 to 10']:.1f} times as fast as "
    f"FedAvg, for {dearer['speeds 1 to 10']:.2f} times the bytes."
)
print(
    f"Where speeds are equal there is less to wait for: it is {faster['equal speeds']:.1f} "
    "times as fast, for "
    f"{dearer['equal speeds']:.2f} times the bytes."
)
