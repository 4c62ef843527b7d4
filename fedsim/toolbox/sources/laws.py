"""Sources that need no downloads: characters of a text, and random samples of a linear law."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.common.errors import DataError
from fedsim.common.files import find_file, read_text, reading
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source, every_fifth


class Text(Source):
    """Characters of a text as tokens; a sample is a window of one speaker's lines.

    The label of a sample is its speaker. Successive windows of a speaker overlap in one character,
    the last target of one window and the first input of the next. Every fifth window of each
    speaker is a test sample. The embedded text has 14 speakers of *The Winter's Tale* and *Measure
    for Measure*: 48,966 characters.

    Attributes:
        path: a text file of your own in UTF-8. Each speech of a play has a line ``NAME:``, then the
            spoken lines, then an empty line; a text without names has one speaker. A relative path
            starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``. None: the
            embedded text.
        length: T, the count of characters of a window that the model receives; samples are int64
            [n, T + 1].
    """

    kind: Literal["text"] = "text"
    path: str | None = None
    length: int = Field(default=40, ge=1, le=100_000)

    def load(self, root: Path | None) -> Raw:
        """Cut the text of each speaker into windows of characters, labelled with the speaker.

        Characters are numbered in sorted order. A speaker with less text than a window is left out.
        """
        path = Path(__file__).parent / "shakespeare.txt"
        if self.path is not None:
            path = find_file(self.path, root)
        with reading(path, "data.source.path", "a text in UTF-8"):
            text = read_text(path)
        characters = np.array(sorted({*text}))
        windows_of_speaker = []
        for speech in _texts_by_speaker(text).values():
            tokens = np.searchsorted(characters, np.array([*speech]))
            if len(tokens) > self.length:
                all_windows = np.lib.stride_tricks.sliding_window_view(tokens, self.length + 1)
                # neighbouring windows overlap in one character, the last target of the first window
                windows_of_speaker.append(all_windows[:: self.length])
        if not windows_of_speaker:
            raise DataError(
                f"'{path}' has no speaker with {self.length + 1} characters "
                f"(data.source.length is {self.length})"
            )
        x = np.concatenate(windows_of_speaker)
        speakers = len(windows_of_speaker)
        counts = [len(windows) for windows in windows_of_speaker]
        y = np.repeat(np.arange(speakers), counts)
        is_test = every_fifth(y)
        return Raw(
            "text",
            x[~is_test],
            y[~is_test],
            x[is_test],
            y[is_test],
            classes=speakers,
            peak=1.0,
            vocabulary=len(characters),
        )


def _texts_by_speaker(text: str) -> dict[str, str]:
    """Return the spoken lines of each speaker of a play, joined to one text: speaker -> text."""
    speeches: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        speaker, lines = _split_speech(block)
        speeches.setdefault(speaker, []).append(lines)
    return {speaker: "\n".join(spoken) for speaker, spoken in speeches.items()}


def _split_speech(block: str) -> tuple[str, str]:
    """Split a block of a play into the speaker and the lines.

    Returns:
        The name in the block's first line, if that line is ``NAME:``, and the lines after it.
        Without such a line, "" and the whole block.
    """
    first_line, newline, lines = block.lstrip().partition("\n")
    speaker = first_line.removesuffix(":")
    is_named = newline and speaker and speaker != first_line and ":" not in speaker
    if not is_named:
        return "", block
    return speaker, lines


class LinearLaw(Source):
    """Samples of a random linear law with noise, y = x W + b + e, for regression.

    The weights W and b are drawn from N(0, 1), the noise e from N(0, noise^2), and the features x
    from N(c, 1). Each group of samples has a centre c, drawn from N(0, 1); the column ``group`` has
    the group of each sample. No model has an expected squared test error below noise^2. Every fifth
    sample of a group is a test sample. The draws do not depend on the scenario's seed.

    Attributes:
        samples, features: number of samples, and number of features of a sample.
        noise: standard deviation of e.
        groups: number of groups; samples belong to the groups in turn.
    """

    kind: Literal["linear"] = "linear"
    samples: int = Field(default=2_000, ge=10, le=10_000_000)
    features: int = Field(default=20, ge=1, le=100_000)
    noise: float = Field(default=0.5, ge=0.0, le=1e6)
    groups: int = Field(default=10, ge=1, le=1_000_000)

    def load(self, root: Path | None) -> Raw:
        """Draw samples around the centre of each group, and targets by one linear law for all.

        The samples are [n, features], the targets [n, 1].
        """
        generator = Streams(0).generator("world/data/linear")
        weights = generator.standard_normal((self.features, 1))
        bias = generator.standard_normal(1)
        centres = generator.normal(0.0, 1.0, (self.groups, self.features))
        group = np.arange(self.samples) % self.groups
        x = centres[group] + generator.standard_normal((self.samples, self.features))
        y = x @ weights + bias + generator.normal(0.0, self.noise, (self.samples, 1))
        samples = x.astype(np.float32)
        targets = y.astype(np.float32)
        is_test = every_fifth(group)
        return Raw(
            "linear",
            samples[~is_test],
            targets[~is_test],
            samples[is_test],
            targets[is_test],
            classes=1,
            peak=1.0,
            columns={"group": np.concatenate([group[~is_test], group[is_test]])},
        )
