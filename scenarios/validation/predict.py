"""Mean rounds of worlds that have not run yet, as each model predicts them.

    python scenarios/validation/predict.py NAME... --out scenarios/validation/predicted-rounds.csv

The file is committed before ``testbed.py`` runs the worlds; ``compare.py`` compares both.
"""

import csv
import tempfile
from pathlib import Path

import click
import numpy as np
import tomli_w

import fedsim
from fedsim.running.scenarios.validation.compare import SEEDS, WORLDS, protocol_of, told
from fedsim.running.scenarios.validation.real_rounds import LATE, MODELS


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(names: tuple[str, ...], out: Path) -> None:
    """Predict worlds of worlds.toml by each model."""
    with out.open("w", newline="") as file, tempfile.TemporaryDirectory() as scratch:
        table = csv.writer(file)
        table.writerow(["world", "protocol", "round, s", "95th percentile, s"])
        for name in names:
            for model in MODELS:
                protocol = protocol_of(model, paces=False)
                path = Path(scratch) / f"{name}-{model}.toml"
                path.write_text(tomli_w.dumps(told(name, WORLDS[name], None, protocol)))
                lengths = []
                for seed in SEEDS:
                    run = fedsim.run(fedsim.load(path, seed=seed))
                    lengths.append(np.diff(run.rounds["time"], prepend=0.0))
                rounds = np.concatenate(lengths)
                late = np.percentile(rounds, LATE)
                table.writerow([name, model, f"{rounds.mean():.4g}", f"{late:.4g}"])


if __name__ == "__main__":
    main()
