"""Decoding of images that may be damaged or hostile, by Pillow."""

import io
import warnings
from typing import TYPE_CHECKING

from fedsim.common.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_PIXELS = 1 << 24  # greatest count of pixels of an image, as few bytes may unpack to gigabytes


def open_image(data: bytes) -> "Image":
    """Open an image file that may be damaged or hostile, without decoding its pixels yet.

    Args:
        data: the bytes of the file.

    Raises:
        DataError: Pillow is missing.
        Exception: the image is damaged; Pillow raises errors of many types.
        ValueError: the image has too many pixels.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"data.source: images need Pillow, which cannot be imported ({error}); pip install "
            "pillow"
        ) from error
    # Pillow warns about an image of many pixels, which is refused below
    with warnings.catch_warnings(action="ignore"):
        image = Image.open(io.BytesIO(data))
    width, height = image.size
    if width * height > _MOST_PIXELS:
        raise ValueError(
            f"it has {width} x {height} pixels; allowed are at most {_MOST_PIXELS} in all"
        )
    return image
