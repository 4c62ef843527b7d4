"""Seconds a batch on a Raspberry Pi 4 and 5, predicted by the catalogue's kinds: see README.md
for the rules.

python scenarios/outside/pis/predict.py            # both tables of predictions anew, of all models;
needs timm and fastervit
python scenarios/outside/pis/predict.py --carry    # predicted.csv from predicted-rule-1.csv
python scenarios/outside/pis/predict.py --fit      # fits the numbers of ARM kernels to the given
rows, and leaves models out
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fedsim.common.training import Batching
from fedsim.learning.objectives import Classification
from fedsim.learning.spec import TrainingSpec
from fedsim.running.scenarios.outside import rows as tables
from fedsim.toolbox.models import profile as counted
from fedsim.world.device_kinds import find_kind
from fedsim.world.rooflines import Rooflines

HERE = Path(__file__).resolve().parent
BATCH, SHAPE = 16, (3, 224, 224)
BOARDS = {"RPi4": "raspberry-pi-4", "RPi5": "raspberry-pi-5"}
RULE_1 = HERE / "predicted-rule-1.csv"
MEMORY = 8e9
MODES = ("train", "finetune")
SHARES = (
    "dense",
    "dense_backward",
    "pointwise",
    "pointwise_backward",
    "grouped",
    "grouped_backward",
)
PASSES = ("norm", "curve", "other")
SPREAD = 0.2  # of a measured time around the predicted one, in logarithms
OTHERS = """
resnet34 resnet101 mobilenetv2_050 mobilenetv2_140 mobilenetv3_small_075 efficientvit_b1 efficientvit_b3 vit_tiny vit_base
deit_small mobilevitv2_075 mobilevitv2_100 mobilevitv2_125 mobilevitv2_150 mobilevitv2_175 fastvit_t8 fastvit_s12
fastvit_sa12 fastvit_sa24 fastvit_sa36 fastvit_ma36 convnext_atto convnext_femto convnext_pico convnext_nano convnext_tiny
convnext_base edgenext_base edgenext_x_small edgenext_xx_small efficientnet_b1 efficientnet_b3 swin_tiny swin_base
inception_next_tiny inception_next_base faster_vit_1 efficientformer_l3 efficientformer_l7 mnasnet_075 mnasnet_140
mnasnet_small ghostnet_100 ghostnetv2_100 ghostnetv2_160 tinynet_a
"""
FULL_NAMES = {
    **{
        name: f"{name}_patch16_224"
        for name in ("vit_tiny", "vit_small", "vit_base", "deit_tiny", "deit_small", "deit_base")
    },
    **{f"swin_{size}": f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base")},
    "maxvit_tiny": "maxvit_tiny_tf_224",
}

Numbers = NDArray[np.float64]


class Measured(NamedTuple):
    """A given time (s a batch)."""

    board: str
    model: str
    mode: str
    seconds: float


def given() -> list[Measured]:
    """The given rows, both columns."""
    rows = [
        (row["device"], row["model"], mode, row[f"{mode}_s_per_batch"])
        for row in tables.given(HERE)
        for mode in MODES
    ]
    return [
        Measured(board, model, mode, float(seconds))
        for board, model, mode, seconds in rows
        if seconds
    ]


def module(model: str, mode: str) -> Any:
    """A model; with ``finetune`` all is frozen but its classifier."""
    if model.startswith("faster_vit"):
        import fastervit  # type: ignore[import-not-found,unused-ignore]

        made = fastervit.create_model(f"{model}_224")
        head = made.head
    else:
        import timm  # type: ignore[import-not-found,unused-ignore]

        made = timm.create_model(FULL_NAMES.get(model, model))
        head = made.get_classifier()
    if mode == "finetune":
        made.requires_grad_(False)
        for each in head if isinstance(head, tuple) else (head,):
            each.requires_grad_(True)
    return made


class Operations:
    """The operations of a batch as columns, told apart by kind."""

    def __init__(self, model: str, mode: str) -> None:
        step = counted._count_step(
            module(model, mode),
            torch.zeros(BATCH, *SHAPE),
            TrainingSpec(),
            "meta",
            Classification(),
        )
        rows = [*step.forward, *step.backward, *step.update]
        self.flops = np.array([row.flops for row in rows])
        self.moved = np.array([row.traffic for row in rows])
        self.share = np.array(
            [SHARES.index(row.kind) if row.kind in SHARES else len(SHARES) for row in rows]
        )
        self.passes = np.array(
            [PASSES.index(row.kind) if row.kind in PASSES else len(PASSES) for row in rows]
        )

    def seconds(self, flops: float, shares: Numbers, passes: Numbers, bandwidth: float) -> float:
        """The rule's time of a batch (s)."""
        work_s, move_s = (
            self.flops / (flops * np.append(shares, 1.0)[self.share]),
            self.moved / bandwidth,
        )
        return float(
            (np.maximum(work_s, move_s) + np.append(passes, 0.0)[self.passes] * move_s).sum()
        )


def fitted(
    rows: list[Measured], of: Mapping[tuple[str, str], Operations], prior: Numbers, bandwidth: float
) -> Numbers:
    """FLOP/s, six shares and three numbers of passes, nearest to the rows by logarithms."""

    def off(at: Numbers) -> Numbers:
        flops, shares, passes = np.exp(at[0]), np.exp(at[1:7]), np.exp(at[7:])
        told = [
            of[row.model, row.mode].seconds(flops, shares, passes, bandwidth) / row.seconds
            for row in rows
        ]
        return np.concatenate([np.log(told) / SPREAD, at - np.log(prior)])

    found: Numbers = np.exp(least_squares(off, np.log(prior)).x)
    return found


def fit() -> None:
    """Fit, leave each model out in turn, and show."""
    rows = given()
    of = {(row.model, row.mode): Operations(row.model, row.mode) for row in rows}
    pi4, pi5 = (find_kind(name, {}, "kind") for name in BOARDS.values())
    bandwidth, prior = (
        pi4.bandwidth * pi4.bandwidth_share,
        np.array([57.6e9 * 0.41, *[0.5] * 6, *[1.0] * 3]),
    )
    on_4, on_5 = ([row for row in rows if row.board == board] for board in BOARDS)
    for what, at in (("before", prior), ("fitted", fitted(on_4, of, prior, bandwidth))):
        errors = [
            of[row.model, row.mode].seconds(at[0], at[1:7], at[7:], bandwidth) / row.seconds - 1
            for row in on_4
        ]
        print(
            f"{what}: {at[0] / 1e9:.1f} GFLOP/s, {np.round(at[1:], 3)}; median error "
            f"{np.median(np.abs(errors)):.1%}"
        )
    left = {
        name: fitted([row for row in on_4 if row.model != name], of, prior, bandwidth)
        for name in {row.model for row in on_4}
    }
    for mode in MODES:
        of_mode = [row for row in on_4 if row.mode == mode]
        parts = {name: (at.item(0), at[1:7], at[7:]) for name, at in left.items()}
        told = [
            of[row.model, mode].seconds(*parts[row.model], bandwidth) / row.seconds - 1
            for row in of_mode
        ]
        print(
            f"{mode}, each model left out: median error {np.median(np.abs(told)):.1%}, worst "
            f"{max(told, key=abs):+.1%}"
        )

    def off(flops: Numbers) -> Numbers:
        rates = np.exp(flops[0]), at[1:7], at[7:], pi5.bandwidth * pi5.bandwidth_share
        return np.log([of[row.model, row.mode].seconds(*rates) / row.seconds for row in on_5])

    print(f"Pi 5: {np.exp(least_squares(off, [25.0]).x[0]) / 1e9:.1f} GFLOP/s")


def predict() -> None:
    """Predict all models by the product's own roofline, and write predicted.csv."""
    rows = {(row.board, row.model, row.mode): row.seconds for row in given()}
    models = dict.fromkeys([row.model for row in given()] + OTHERS.split())
    kinds = [
        find_kind(name, {}, "kind").model_copy(update={"memory": MEMORY})
        for name in BOARDS.values()
    ]
    found = []
    for model in models:
        for mode in MODES:
            cost = counted.profile(module(model, mode), SHAPE)
            lines = Rooflines(kinds, np.arange(len(kinds)), cost, Batching(BATCH))
            needed = cost.memory + BATCH * cost.memory_a_sample
            for place, board in enumerate(BOARDS):
                if needed > kinds[place].training_memory:
                    print(f"{board} {model} {mode}: {needed / 1e9:.1f} GB do not fit")
                known = rows.get((board, model, mode))
                told = BATCH / float(lines.speeds()[place])
                found.append(
                    tables.Prediction(
                        f"{board} {mode}, s a batch", model, known, told, known is not None
                    )
                )
    tables.write(RULE_1, found)
    carry()


def carry() -> None:
    """Write predicted.csv: rule 1, with the factors of a Pi 4 for the same models on a Pi 5."""
    by_rule_1 = tables.read(RULE_1)
    factors = {}
    for row in by_rule_1:
        if row.measured and row.what.startswith("RPi4"):
            mode = row.what.partition(" ")[2]
            factors[mode, operations_of(row.cell)] = row.measured / row.predicted
    found = []
    for row in by_rule_1:
        board, _, mode = row.what.partition(" ")
        factor = factors.get((mode, operations_of(row.cell)), 1.0) if board == "RPi5" else 1.0
        found.append(row._replace(predicted=row.predicted * factor))
    tables.write(HERE / "predicted.csv", found)
    tables.show("Seconds a batch", found)


def operations_of(model: str) -> str:
    """Name that models of the same operations share: a DeiT is a ViT of other weights."""
    return model.replace("deit_", "vit_")


@click.command(help=__doc__)
@click.option("--fit", "fits", is_flag=True)
@click.option("--carry", "carries", is_flag=True)
def main(fits: bool, carries: bool) -> None:
    """Fit, or predict."""
    warnings.simplefilter("ignore")
    if fits:
        fit()
    elif carries:
        carry()
    else:
        predict()


if __name__ == "__main__":
    main()
