"""Puts data where the unmodified app looks for them, without a network: ``python
scenarios/outside/fedsasync/data.py mnist``.

The app asks for ``ylecun/mnist`` or ``uoft-cs/cifar10``, which Hugging Face's ``datasets`` first
seeks below the working directory. Samples are those of fedsim's sources (``FEDSIM_DATA``); a second
word is how many of them to take.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedsim.learning.data.spec import DataSpec

NAMES = {"mnist": ("ylecun/mnist", "image"), "cifar10": ("uoft-cs/cifar10", "img")}
FEATURES = (
    '{{"info": {{"features": {{"{image}": {{"_type": "Image"}}, "label": {{"dtype": "int64", '
    '"_type": "Value"}}}}}}}}'
)


def main(which: str = "mnist", count: str = "60000") -> None:
    """Write the training samples of a data set as PNG in Parquet."""
    place, image = NAMES[which]
    spec = DataSpec.model_validate({"source": which})
    raw = spec.source.load(spec.own_folder())
    pixels, labels = np.asarray(raw.x_train)[: int(count)], np.asarray(raw.y_train)[: int(count)]
    if pixels.dtype != np.uint8:
        pixels = np.rint((pixels - pixels.min()) / (pixels.max() - pixels.min()) * 255).astype(
            np.uint8
        )
    side = {"mnist": (28, 28), "cifar10": (32, 32, 3)}[which]
    rows = []
    for one in pixels:
        file = io.BytesIO()
        shaped = (
            one.reshape(side) if which == "mnist" else one.reshape(3, 32, 32).transpose(1, 2, 0)
        )
        Image.fromarray(shaped).save(file, "png")
        rows.append({"bytes": file.getvalue(), "path": None})
    folder = Path(place) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(rows, kind), "label": pa.array(labels.astype(np.int64))})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": FEATURES.format(image=image)}),
        folder / "train.parquet",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
