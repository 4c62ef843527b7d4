"""Sources that need no files: scikit-learn's digits, scenes of Shakespeare's, a linear law, FedProx's synthetic data."""

import gzip
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.federated import Dataset, Pool, Raw
from fedsim.data.sources.base import Source, every_fifth
from fedsim.errors import DataError, ScenarioError
from fedsim.files import SOUGHT, regular, sought
from fedsim.language.spec import Spec
from fedsim.streams import Streams


class Digits(Source):
    """1,797 hand-written digits of 8x8 pixels with values 0..16 (scikit-learn's ``load_digits``).

    Every fifth image of each class is a test image: 1,442 for training and 355 for testing.
    """

    kind: Literal["digits"] = "digits"
    known = (1, 8, 8), 10

    def load(self, root: Path | None) -> Raw:
        rows = _rows()
        x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)  # what goes out below are copies
        test = every_fifth(y)
        return Raw("digits", x[~test], y[~test], x[test], y[test], classes=10, peak=16.0)


@cache
def _rows() -> NDArray[np.uint8]:
    """64 pixels and the label of each digit, from scikit-learn's own file: importing scikit-learn takes more than a second."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    from sklearn.datasets import load_digits  # a scikit-learn that keeps its file elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels]).astype(np.uint8)


class Text(Source):
    """Characters of a text as tokens, each sample a window of one speaker's lines; labels are the speakers.

    Windows overlap in one character, the last to predict and the first to see. Every fifth one of each speaker is a test
    sample. The embedded text has 14 speakers of scenes from *The Winter's Tale* and *Measure for Measure*: 48,966 characters.

    Attributes:
        path: a text of your own in UTF-8, as plays are written: a line ``NAME:``, what is said, an empty line. Without
            such lines all of it is one speaker's. Relative paths start from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``. None: the embedded one.
        length: characters that a model sees of a window, T; samples are int64 [n, T + 1].
    """

    published: ClassVar[bool] = False
    kind: Literal["text"] = "text"
    path: str | None = None
    length: int = Field(default=40, ge=1, le=100_000)

    def load(self, root: Path | None) -> Raw:
        path = Path(__file__).parent / "shakespeare.txt" if self.path is None else sought(self.path, root)
        try:
            text = regular(path).read_text("utf-8")
        except FileNotFoundError:
            raise DataError(f"data.source.path names '{path}', which does not exist; {SOUGHT}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"'{path}' cannot be read as a text in UTF-8: {error}") from None
        said: dict[str, list[str]] = {}
        for block in text.split("\n\n"):
            speaker = re.match(r"\s*([^\n:]+):\n", block)
            said.setdefault(speaker[1] if speaker else "", []).append(block[speaker.end() :] if speaker else block)
        characters = np.array(sorted({*text}))
        parts = []
        for lines in said.values():
            tokens = np.searchsorted(characters, np.array([*"\n".join(lines)]))
            starts = range(0, len(tokens) - self.length, self.length)
            if starts:
                parts.append(np.stack([tokens[start : start + self.length + 1] for start in starts]))
        if not parts:
            raise DataError(f"'{path}' has no speaker with {self.length + 1} characters (data.source.length is {self.length})")
        x, y = np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        test = every_fifth(y)
        return Raw("text", x[~test], y[~test], x[test], y[test], len(parts), 1.0, len(characters))


class LinearLaw(Source):
    """A linear law with noise: y = x W + b + e, with W, b ~ N(0, 1), e ~ N(0, noise^2) and x ~ N(c, 1).

    The least test error that any model can hope for is noise^2. The column ``group`` has the group of each sample, with a
    centre c ~ N(0, spread^2) of its own. Every fifth sample is a test sample.

    Attributes:
        samples, features, targets: how many; of a sample, and of a target.
        noise: standard deviation of e.
        groups: how many centres there are; samples fall to them in turn.
        spread: standard deviation of the centres.
        seed: of all draws, whatever that of the scenario.
    """

    kind: Literal["linear"] = "linear"
    samples: int = Field(default=2_000, ge=10, le=10_000_000)
    features: int = Field(default=20, ge=1, le=100_000)
    targets: int = Field(default=1, ge=1, le=100_000)
    noise: float = Field(default=0.5, ge=0.0, le=1e6)
    groups: int = Field(default=10, ge=1, le=1_000_000)
    spread: float = Field(default=1.0, ge=0.0, le=1e6)
    seed: int = Field(default=0, ge=0)

    def load(self, root: Path | None) -> Raw:
        generator = Streams(self.seed).generator("world/data/linear")
        weights, bias = generator.standard_normal((self.features, self.targets)), generator.standard_normal(self.targets)
        centres = generator.normal(0.0, self.spread, (self.groups, self.features))
        group = np.arange(self.samples) % self.groups
        x = centres[group] + generator.standard_normal((self.samples, self.features))
        y = x @ weights + bias + generator.normal(0.0, self.noise, (self.samples, self.targets))
        order = np.argsort(every_fifth(group), kind="stable")  # test samples last
        groups, samples, targets = group[order], x[order].astype(np.float32), y[order].astype(np.float32)
        size = self.samples - int(every_fifth(group).sum())
        parts = samples[:size], targets[:size], samples[size:], targets[size:]
        return Raw("linear", *parts, self.targets, 1.0, columns={"group": groups})


_MOST_NUMBERS = 1_000_000_000  # 4 GB of samples


class Synthetic(Spec):
    """Samples drawn for each device (Li et al. 2020, section 5.1; constants from the authors' code).

    Device k draws u ~ N(0, alpha) and B ~ N(0, beta); W and b have entries N(u, 1), both around the same u; its samples are
    x ~ N(v, Sigma) with v_j ~ N(B, 1) and Sigma_jj = j^-1.2, its labels y = argmax(x W + b). This source brings its own
    devices: only the partition ``synthetic``, which says how many samples each has, goes with it.

    Attributes:
        alpha: standard deviation between the devices' models.
        beta: standard deviation between the devices' places.
        features: length of a sample.
        classes: number of classes.
    """

    kind: Literal["synthetic"] = "synthetic"
    alpha: float = Field(default=1.0, ge=0.0, le=1e6)
    beta: float = Field(default=1.0, ge=0.0, le=1e6)
    features: int = Field(default=60, ge=1, le=1_000_000)
    classes: int = Field(default=10, ge=2, le=100_000)

    def draw(self, sizes: NDArray[np.int64], streams: Streams) -> Dataset:
        """Samples of devices of such ``sizes``, int64 [devices], one after the other; no device's depend on the others."""
        numbers = int(sizes.sum()) * self.features + self.features * self.classes
        if numbers > _MOST_NUMBERS:
            raise ScenarioError(
                f"data.source.features is {self.features} for {sizes.sum()} samples and {self.classes} classes, {numbers} "
                f"numbers; allowed are at most {_MOST_NUMBERS}"
            )
        parts = [self._draw_device(int(size), streams.generator("world/data/synthetic", k)) for k, size in enumerate(sizes)]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset("synthetic", Pool(x, y, self.classes), len(y))

    def _draw_device(self, size: int, generator: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        u, place = generator.normal(0.0, [self.alpha, self.beta])
        centre = generator.normal(place, 1.0, self.features)
        weights = generator.normal(u, 1.0, (self.features, self.classes))
        bias = generator.normal(u, 1.0, self.classes)
        spread = np.arange(1, self.features + 1) ** -0.6  # the square root of Sigma's diagonal
        x = centre + spread * generator.standard_normal((size, self.features))
        return x.astype(np.float32), np.argmax(x @ weights + bias, axis=1)
