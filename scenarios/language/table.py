"""Which phones and boards can tune 1B, 3B and 7B models by LoRA, how long, and for how many joules.

    python scenarios/language/table.py

Writes RESULTS.md beside this file: a table of all devices and models, and the source of each figure.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.training import Training
from fedsim.common.units import show_bytes, show_seconds
from fedsim.running.assembly import Run
from fedsim.world.device_kinds import catalogue, figures, find_kind

HERE = Path(__file__).parent
DEVICES = ("phone-mid", "phone-high", "raspberry-pi-5", "jetson-orin-nano", "jetson-agx-orin")
BITS = (16.0, 4.127)
BATCHES = (1, 2, 4, 8, 16)
USED = (
    *("flops", "flops_share", "bandwidth", "bandwidth_share", "memory", "memory_share", "batch"),
    *("down", "up", "idle", "compute", "radio", "receive_byte", "send_byte", "tail", "tail_lasts"),
)


class Sizes(NamedTuple):
    """Sizes of a language model.

    Attributes:
        name: name of the published model with these sizes.
        params: count of its numbers.
        layers, width, keys, inner: count of layers, and widths of a token, of its keys and values,
            and within the layers' perceptrons.
        vocabulary: count of its tokens.
    """

    name: str
    params: int
    layers: int
    width: int
    keys: int
    inner: int
    vocabulary: int

    def tables(self, bits: float) -> dict[str, Any]:
        """Return the keys of ``[model]`` in which the scenario differs."""
        width = self.width
        return {
            "params": self.params,
            "layers": self.layers,
            "vocabulary": self.vocabulary,
            "bits": bits,
            "dense": {
                "q_proj": [width, width],
                "k_proj": [width, self.keys],
                "v_proj": [width, self.keys],
                "o_proj": [width, width],
                "gate_proj": [width, self.inner],
                "up_proj": [width, self.inner],
                "down_proj": [self.inner, width],
            },
        }


MODELS = {
    "1B": Sizes("Llama 3.2 1B", 1_235_814_400, 16, 2048, 512, 8192, 128_256),
    "3B": Sizes("Llama 3.2 3B", 3_212_749_824, 28, 3072, 1024, 8192, 128_256),
    "7B": Sizes("LLaMA 7B", 6_738_415_616, 32, 4096, 4096, 11_008, 32_000),
}


class Tuning(NamedTuple):
    """An epoch of a model on a device.

    Attributes:
        needed, room: memory that a batch of one sequence needs, and that the device has (bytes).
        batch: the largest batch of ``BATCHES`` for which the memory suffices; 0: none.
        compute_s, joules: time of computing, and energy of it (s, J); 0 without a batch.
        sequences: count of sequences of the epoch.
        base_bytes, base_s, base_joules: size of the model, and time and energy of its download.
    """

    needed: float
    room: float
    batch: int = 0
    compute_s: float = 0.0
    joules: float = 0.0
    sequences: int = 0
    base_bytes: float = 0.0
    base_s: float = 0.0
    base_joules: float = 0.0


def scenario(model: str, bits: float, device: str, batch: int = 1) -> fedsim.Scenario:
    """Return the scenario of a model on a device."""
    base = fedsim.load(HERE / "base.toml")
    tables = base.model_dump(exclude_unset=True)
    tables["model"] |= MODELS[model].tables(bits)
    tables["population"]["device"] = device
    tables["training"]["batch_size"] = batch
    return fedsim.Scenario(**tables)


def tune(model: str, bits: float, device: str) -> Tuning:
    """Find the largest batch that fits, and simulate one round with it."""
    needs = needed(model, bits, device)
    room = find_kind(device, {}, "device").training_memory
    fitting = [batch for batch in BATCHES if needs[batch] <= room]
    if not fitting:
        return Tuning(needs[1], room)
    chosen = scenario(model, bits, device, max(fitting))
    run = Run(chosen, Simulation())
    samples = run.samples.item(0)
    summary = fedsim.run(chosen).summary
    joules = summary["energy"]["by_phase"]
    base_bytes = summary["bytes"]["by_purpose"]["base"]
    return Tuning(
        needs[1],
        room,
        max(fitting),
        float(run.population.training_s(0, Training(None), samples)),
        joules["compute"],
        samples,
        base_bytes,
        base_bytes / run.network.access["down"].item(0),
        joules["receive"] * base_bytes / summary["bytes"]["down"],
    )


def needed(model: str, bits: float, device: str) -> dict[int, float]:
    """Return batch -> memory (bytes) that a training needs, on a device with memory for all."""
    tables = scenario(model, bits, device).model_dump(exclude_unset=True)
    tables["population"]["device"] = "large"
    tables["population"]["kinds"] = {"large": {"like": device, "memory": "1000 GB"}}
    run = Run(fedsim.Scenario(**tables), Simulation())
    rooflines = run.population.rooflines
    assert rooflines is not None
    samples = run.samples.item(0)
    needs = {}
    for batch in BATCHES:
        needs[batch] = rooflines.needed(Training(None, batch_size=batch), samples)
    return needs


def rows() -> Iterator[str]:
    """Yield the lines of the table of devices and models."""
    yield "| device | model | bits | needs, batch 1 | has | batch | 64 sequences | a sequence | J | J a sequence |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for device in DEVICES:
        for model in MODELS:
            for bits in BITS:
                yield row(device, model, bits, tune(model, bits, device))


def row(device: str, model: str, bits: float, tuning: Tuning) -> str:
    """Return the line of a device and a model."""
    cells = [device, model, f"{bits:g}", show_bytes(tuning.needed), show_bytes(tuning.room)]
    if not tuning.batch:
        cells += ["none", "", "", "", ""]
    else:
        cells += [
            str(tuning.batch),
            show_seconds(tuning.compute_s),
            show_seconds(tuning.compute_s / tuning.sequences),
            f"{tuning.joules:,.0f}",
            f"{tuning.joules / tuning.sequences:,.1f}",
        ]
    return f"| {' | '.join(cells)} |"


def downloads() -> Iterator[str]:
    """Yield the lines of the table of first downloads."""
    yield "| device | model | bits | bytes | time | J |"
    yield "|---|---|---|---|---|---|"
    for device in DEVICES:
        for model in MODELS:
            tuning = tune(model, BITS[-1], device)
            if tuning.batch:
                cells = [device, model, f"{BITS[-1]:g}", show_bytes(tuning.base_bytes)]
                cells += [show_seconds(tuning.base_s), f"{tuning.base_joules:,.0f}"]
                yield f"| {' | '.join(cells)} |"


def sources() -> Iterator[str]:
    """Yield the lines of the table of figures, each with its source."""
    yield "| device | figure | value | estimate? | source | date |"
    yield "|---|---|---|---|---|---|"
    for device in DEVICES:
        known = figures(device, "device")
        for name in USED:
            if name not in known:
                continue
            value, source, date = known[name]
            kind = "estimate" if source.startswith("estimate") else ""
            text = source.removeprefix("estimate: ").replace("|", "/")
            yield f"| {device} | `{name}` | {value} | {kind} | {text} | {date} |"


def text() -> str:
    """Return the text of RESULTS.md, from the template text.md."""
    models = []
    for name, sizes in MODELS.items():
        what = f"{sizes.params:,} numbers, {sizes.layers} layers of {sizes.width}"
        models.append(f"| {name} | {what} | | sizes of {sizes.name}, counted from its shapes |")
    titles = catalogue()
    devices = [f"- `{device}`: {titles[device]}" for device in DEVICES]
    template = (HERE / "text.md").read_text(encoding="utf-8")
    return template.format(
        rows="\n".join(rows()),
        devices="\n".join(devices),
        downloads="\n".join(downloads()),
        models="\n".join(models),
        sources="\n".join(sources()),
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "RESULTS.md")
def main(out: Path) -> None:
    """Write the tables."""
    out.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
