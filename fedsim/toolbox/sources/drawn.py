"""Source of random images, for scenarios that need images of some shape but no files."""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source, every_fifth
from fedsim.toolbox.sources.tables import USER

_MOST_PIXELS = 1_000_000_000  # greatest count of values in the drawn samples (1 GB)
_CELL = 4  # side of the squares of which an image of a class consists (pixels)
_GREY = 128.0  # mean value of a pixel (of 255)
_BRIGHTNESS = 20.0  # standard deviation of a user's brightness (of 255)

Side = Annotated[int, Field(ge=1, le=4_096)]


class DrawnImages(Source):
    """Random images of any shape, in place of real images, with classes and users of unequal size.

    Each class has a template, an image of squares with random colours around a mean colour. A
    sample is the template of its class, moved by up to two pixels, with the brightness of its user
    and with noise. A user has samples of all classes, in shares drawn from Dirichlet(1, ..., 1); a
    single user has equally many of each class. Every fifth sample of each user is a test sample.
    The draws do not depend on the scenario's seed.

    Attributes:
        shape: channels, height and width of an image: [3, 32, 32] as CIFAR-10, [1, 28, 28] as
            FEMNIST.
        samples: number of all samples, for training and tests.
        classes: number of classes.
        users: number of users; ``data.column = "user"`` with the partition ``by-user`` gives each
            device a user.
        spread: geometric standard deviation of the users' sample counts, which are lognormal; 1:
            equal counts.
        noise: standard deviation of each pixel's noise, on the scale of 0 to 255.
        contrast: standard deviation of the colours of the squares around the mean colour of their
            class, on the scale of 0 to 255.
        colour: standard deviation of the classes' mean colours in each channel, on the scale of 0
            to 255; 0: the mean colour of every class is grey.
    """

    kind: Literal["drawn-images"] = "drawn-images"
    shape: list[Side] = Field(default=[3, 32, 32], min_length=3, max_length=3)
    samples: int = Field(default=2_000, ge=10, le=10_000_000)
    classes: int = Field(default=10, ge=2, le=100_000)
    users: int = Field(default=1, ge=1, le=1_000_000)
    spread: float = Field(default=1.5, ge=1.0, le=100.0)
    noise: float = Field(default=60.0, ge=0.0, le=1e4)
    contrast: float = Field(default=40.0, ge=0.0, le=1e4)
    colour: float = Field(default=0.0, ge=0.0, le=1e4)

    @model_validator(mode="after")
    def _check_size(self) -> "DrawnImages":
        pixels = self.samples * int(np.prod(self.shape))
        if pixels > _MOST_PIXELS:
            raise ValueError(
                f"'samples' is {self.samples} of shape {self.shape}, {pixels} bytes; allowed are at "
                f"most {_MOST_PIXELS}"
            )
        return self

    def load(self, root: Path | None) -> Raw:
        """Draw users, labels and images; every fifth sample of a user is for tests."""
        generator = Streams(0).generator("world/data/drawn-images")
        user = self._draw_users(generator)
        y = self._draw_labels(user, generator)
        x = self._draw_images(user, y, generator)
        is_test = every_fifth(user)
        return Raw(
            "drawn-images",
            x[~is_test],
            y[~is_test],
            x[is_test],
            y[is_test],
            self.classes,
            columns={USER: np.concatenate([user[~is_test], user[is_test]])},
        )

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        return tuple(self.shape), self.classes

    def _draw_users(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw how many samples each user has, and return the user of each sample, int64 [samples].

        The samples of a user follow one another. Each user has at least five samples.

        Raises:
            ScenarioError: there are fewer than five samples for each user.
        """
        least = 5
        if self.samples < least * self.users:
            raise ScenarioError(
                f"data.source.samples is {self.samples} for {self.users} users; each needs {least}, "
                f"so at least {least * self.users} are needed"
            )
        weights = generator.lognormal(0.0, np.log(self.spread), self.users)
        ends = np.cumsum(weights) / weights.sum() * (self.samples - least * self.users)
        sizes = np.diff(np.floor(ends + 0.5).astype(np.int64), prepend=0) + least
        return np.repeat(np.arange(self.users), sizes)

    def _draw_labels(
        self, user: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw the label of each sample, int64 [samples].

        A single user has equally many of each class; several users have their own shares of
        classes.

        Args:
            user: the user of each sample, int64 [samples]; the samples of a user follow one
                another.
            generator: the source of the draws.
        """
        if self.users == 1:
            return generator.permutation(np.arange(self.samples) % self.classes)
        labels = np.empty(len(user), np.int64)
        user_boundaries = np.flatnonzero(np.diff(user)) + 1
        for indices in np.split(np.arange(len(user)), user_boundaries):
            shares = generator.dirichlet(np.ones(self.classes))
            labels[indices] = generator.choice(self.classes, len(indices), p=shares)
        return labels

    def _draw_images(
        self, user: NDArray[np.int64], y: NDArray[np.int64], generator: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Draw the images, uint8 [samples, channels, height, width].

        Args:
            user: the user of each sample, which sets its brightness; int64 [samples].
            y: the label of each sample, which sets its pattern; int64 [samples].
            generator: the source of the draws.
        """
        channels, height, width = self.shape
        # the pattern of a class consists of squares of ``_CELL`` x ``_CELL`` pixels
        squares_shape = (
            self.classes,
            channels,
            math.ceil(height / _CELL),
            math.ceil(width / _CELL),
        )
        class_colours = np.full((self.classes, channels, 1, 1), _GREY)
        if self.colour:
            class_colours = generator.normal(_GREY, self.colour, class_colours.shape)
        contrasts = generator.normal(0.0, self.contrast, squares_shape)
        squares = (class_colours + contrasts).astype(np.float32)
        patterns = squares.repeat(_CELL, axis=2).repeat(_CELL, axis=3)[..., :height, :width]
        brightness = generator.normal(0.0, _BRIGHTNESS, self.users).astype(np.float32)
        # each sample's pattern is moved by up to 2 pixels in each direction
        moves = generator.integers(-2, 3, (self.samples, 2))
        x = np.empty((self.samples, *self.shape), np.uint8)
        for index in range(self.samples):
            down, right = moves[index]
            image = np.roll(patterns[y[index]], (down, right), axis=(1, 2))
            noise = generator.standard_normal(image.shape, dtype=np.float32) * self.noise
            x[index] = np.clip(image + brightness[user[index]] + noise, 0.0, 255.0)
        return x
