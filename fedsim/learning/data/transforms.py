"""Quarter turns and random augmentation of images, computed on demand."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.arrays import AnyArray
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams

Images = NDArray[np.float32]

_BLOCK = 512  # count of images distorted together, which limits the working memory


class Augmentation(Spec):
    """``data.augmentation``: random distortions of training images.

    Source of the defaults: CATA-Fed (Jeong and Kim 2022, section 5.1).

    Attributes:
        max_degrees: each image is rotated by an angle uniform in [-max_degrees, max_degrees].
        flip: probability of a mirror image, left to right.
        shift: each image is moved down and right, by fractions of its height and width that are
            uniform in [-shift, shift].
    """

    max_degrees: float = Field(default=15.0, ge=0.0, le=180.0)
    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    shift: float = Field(default=0.1, ge=0.0, lt=1.0)


def rotate(raw: AnyArray, quarter_turns: int) -> AnyArray:
    """Rotate images [k, c, h, w] counter-clockwise by quarter turns, without interpolation."""
    return np.ascontiguousarray(np.rot90(raw, quarter_turns, axes=(2, 3)))


def augment(raw: Images, augmentation: Augmentation, seed: int) -> Images:
    """Distort images at random, with bilinear interpolation; border pixels repeat outwards.

    Args:
        raw: images [k, c, h, w].
        augmentation: the distortions.
        seed: seed of the draws; the random numbers that distort image j depend on the seed and j.

    Returns:
        The distorted images, [k, c, h, w].
    """
    streams = Streams(seed)
    positions = np.arange(len(raw), dtype=np.int64)
    out = np.empty_like(raw)
    for start in range(0, len(raw), _BLOCK):
        block = slice(start, start + _BLOCK)
        uniforms = [streams.uniforms("augment", positions[block], number) for number in range(4)]
        out[block] = _distort(raw[block], augmentation, uniforms)
    return out


def _distort(
    images: Images, augmentation: Augmentation, uniforms: list[NDArray[np.float64]]
) -> Images:
    """Rotate, move and mirror images by given random numbers, with bilinear interpolation.

    Args:
        images: images [k, c, h, w].
        augmentation: the largest angle and move, and the probability of a mirror image.
        uniforms: for each image four uniform numbers in [0, 1): rotation, shift down, shift right,
            and mirroring; four arrays [k].

    Returns:
        The distorted images, [k, c, h, w].
    """
    height, width = images.shape[2:]
    middle_row = (height - 1) / 2.0
    middle_column = (width - 1) / 2.0
    u_angle, u_down, u_right, u_mirror = (numbers[:, None, None] for numbers in uniforms)
    angle = np.deg2rad(augmentation.max_degrees) * (2.0 * u_angle - 1.0)
    down = augmentation.shift * height * (2.0 * u_down - 1.0)
    right = augmentation.shift * width * (2.0 * u_right - 1.0)
    mirror = np.where(u_mirror < augmentation.flip, -1.0, 1.0)
    # The source of each output pixel is found by the inverse distortion. It undoes the move first,
    # then the rotation by ``angle`` around the middle, and then the mirroring.
    y = np.arange(height)[None, :, None] - middle_row - down
    x = np.arange(width)[None, None, :] - middle_column - right
    cos = np.cos(angle)
    sin = np.sin(angle)
    rows = np.clip(middle_row + cos * y + sin * x, 0.0, height - 1.0)
    columns = np.clip(middle_column + mirror * (cos * x - sin * y), 0.0, width - 1.0)
    return _interpolate(images, rows, columns)


def _interpolate(images: Images, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Images:
    """Read the pixels of images at fractional coordinates, by bilinear interpolation.

    Args:
        images: images [k, c, h, w].
        rows: row in the image that each output pixel shows, float64 [k, h, w].
        columns: column in the image that each output pixel shows, float64 [k, h, w].

    Returns:
        The interpolated images, [k, c, h, w].
    """
    count, channels, height, width = images.shape
    top = np.floor(rows).astype(np.int64)
    left = np.floor(columns).astype(np.int64)
    bottom = np.minimum(top + 1, height - 1)
    right = np.minimum(left + 1, width - 1)
    row_share = (rows - top).astype(np.float32)[:, None]
    column_share = (columns - left).astype(np.float32)[:, None]
    flat = images.reshape(count, channels, height * width)

    def pixels_at(row: NDArray[np.int64], column: NDArray[np.int64]) -> Images:
        index = (row * width + column).reshape(count, 1, height * width)
        return np.take_along_axis(flat, index, axis=2).reshape(images.shape)

    top_left = pixels_at(top, left)
    bottom_left = pixels_at(bottom, left)
    upper_edge = top_left + column_share * (pixels_at(top, right) - top_left)
    lower_edge = bottom_left + column_share * (pixels_at(bottom, right) - bottom_left)
    return upper_edge + row_share * (lower_edge - upper_edge)
