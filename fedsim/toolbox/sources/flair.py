"""Source of the published files of FLAIR, a data set of labelled photographs by user."""

import re
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import DataError, show_value
from fedsim.common.files import find_file, read_bytes, read_json
from fedsim.common.notes import note
from fedsim.learning.data.federated import Raw
from fedsim.learning.data.sources import Source
from fedsim.toolbox.sources.decoding import open_image
from fedsim.toolbox.sources.tables import USER

LABELS = "labels_and_metadata.json"
IMAGES = "small_images"

_NAME = re.compile(r"[\w-]{1,100}")
_KEYS = ("image_id", "user_id", "partition", "labels", "fine_grained_labels")
_BILINEAR = 2  # ``PIL.Image.Resampling.BILINEAR``
_MOST_BYTES = 64 * 10**9  # greatest size of all images in memory (bytes)


class _Photo(NamedTuple):
    """Photograph in FLAIR's file of labels: ID of its image, ID of its user, part and labels.

    The part is the set to which the photograph belongs, such as ``train`` or ``test``.
    """

    image: str
    user: str
    part: str
    labels: list[str]


class Flair(Source):
    """FLAIR: photographs of Flickr's users, each with some of 17 labels.

    Source: Song, Granqvist and Talwar, "FLAIR" (2022). The folder has ``labels_and_metadata.json``
    and ``small_images/IMAGE_ID.jpg``, as published. Targets are 0 and 1, float32 [n, labels], for
    the objective ``multi-label``. ``data.column = "user"`` with the partition ``by-user`` gives
    each device a user. Users of the published test part are last; set ``population.tested_only`` to
    their count, so that they do not train. Users of the validation part are not read. Images need
    Pillow.

    Attributes:
        path: the folder; a relative path starts from ``data.root``, else the working directory,
            else ``$FEDSIM_DATA``.
        labels: ``coarse``: the 17 labels; ``fine``: 1,628 finer labels.
        side: height and width to which images are scaled (pixels); None: images stay as they are,
            256 x 256.
        users: number of users that are read from each of the two parts, training and test. They
            are the users whose first images come first in the order of image IDs. None: all.
    """

    kind: Literal["flair"] = "flair"
    path: str = "flair"
    labels: Literal["coarse", "fine"] = "coarse"
    side: int | None = Field(default=64, ge=1, le=4_096)
    users: int | None = Field(default=None, ge=1, le=10_000_000)

    _parts: ClassVar[tuple[str, str]] = ("train", "test")

    def surplus(self, raw: Raw, column: str | None) -> list[str]:
        return []

    def load(self, root: Path | None) -> Raw:
        """Read the selected photographs, with a target of 0 or 1 for each label."""
        folder = find_file(self.path, root)
        photos = _read_photos(folder / LABELS, self.labels)
        names = sorted({label for photo in photos for label in photo.labels})
        if not names:
            raise DataError(f"'{folder / LABELS}' has no labels")
        train, test = (self._select(photos, part) for part in self._parts)
        if not train:
            raise DataError(f"'{folder / LABELS}' has no image in the part 'train'")
        photographs = [*train, *test]
        users: dict[str, int] = {}  # name -> number, in order of the first photograph
        for photo in photographs:
            users.setdefault(photo.user, len(users))
        x = self._decode_images(folder / IMAGES, [photo.image for photo in photographs])
        y = _targets(photographs, names)
        owners = np.array([users[photo.user] for photo in photographs], dtype=np.int64)
        test_only_users = len({photo.user for photo in test} - {photo.user for photo in train})
        note(
            f"{str(folder)!r}: {len(photographs)} images of {len(users)} users, {test_only_users} "
            f"of whom have test samples alone; {len(names)} labels"
        )
        train_size = len(train)
        return Raw(
            "flair",
            x[:train_size],
            y[:train_size],
            x[train_size:],
            y[train_size:],
            classes=len(names),
            columns={USER: owners},
        )

    def _select(self, photos: list[_Photo], part: str) -> list[_Photo]:
        """Select the photographs of the users that are read, sorted by image ID.

        The users are the first ``self.users`` in the order of their first images.

        Args:
            photos: all photographs of the data set.
            part: ``train`` or ``test``; only photographs of this part are selected.
        """
        entries = sorted(photo for photo in photos if photo.part == part)
        users = list(dict.fromkeys(photo.user for photo in entries))
        allowed = set(users[: self.users])
        return [photo for photo in entries if photo.user in allowed]

    def _decode_images(self, folder: Path, names: list[str]) -> NDArray[np.uint8]:
        """Decode images, uint8 [n, 3, height, width].

        Args:
            folder: the folder of the images.
            names: names of the files, without ``.jpg``.

        Raises:
            DataError: an image is missing or damaged, the images differ in shape, or they take too
                much memory.
        """
        first_image = _decode(folder / f"{names[0]}.jpg", self.side)
        if first_image.size * len(names) > _MOST_BYTES:
            raise DataError(
                f"'{folder}': {len(names)} images of shape {first_image.shape} take "
                f"{first_image.size * len(names)} bytes; give data.source.users, or a smaller "
                "data.source.side"
            )
        x = np.empty((len(names), *first_image.shape), np.uint8)
        for index, name in enumerate(names):
            image = _decode(folder / f"{name}.jpg", self.side)
            if image.shape != first_image.shape:
                raise DataError(
                    f"'{folder / name}.jpg' is of shape {image.shape}, the first one {first_image.shape}; "
                    "give data.source.side, to which all are scaled"
                )
            x[index] = image
        return x.transpose(0, 3, 1, 2)


def _read_photos(path: Path, labels: Literal["coarse", "fine"]) -> list[_Photo]:
    """Read the entries of ``labels_and_metadata.json``, FLAIR's file of labels.

    Args:
        path: the file.
        labels: which of the two lists of labels of each photograph is read.

    Raises:
        DataError: the file cannot be read, or is not as published.
    """
    try:
        entries = read_json(path)
    except FileNotFoundError:
        raise DataError(
            f"data.source.path: there is no '{path}'; FLAIR's folder has {LABELS} and {IMAGES}/, "
            "`fedsim data fetch flair` says where they are"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' cannot be read as JSON: {error}") from None
    if not isinstance(entries, list):
        raise DataError(f"'{path}' is no list of images")
    return [_parse_photo(path, number, entry, labels) for number, entry in enumerate(entries)]


def _parse_photo(
    path: Path, number: int, entry: object, labels: Literal["coarse", "fine"]
) -> _Photo:
    """Check the entry of a photograph in FLAIR's file of labels, and convert it.

    Args:
        path: the file, for error messages.
        number: index of the entry, for error messages.
        entry: the entry, a JSON object.
        labels: which of the two lists of labels in the entry is read.

    Raises:
        DataError: the entry is not as published.
    """
    owner = f"'{path}': entry {number} (from 0)"
    if not isinstance(entry, dict) or not set(_KEYS) <= entry.keys():
        raise DataError(f"{owner} needs {', '.join(_KEYS)}")
    image = str(entry["image_id"])
    if not _NAME.fullmatch(image):
        raise DataError(f"{owner} has the image_id {show_value(image)}, which is no name of a file")
    key = "labels" if labels == "coarse" else "fine_grained_labels"
    names = entry[key]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{owner} has {key} {show_value(names)}; a list of words is expected")
    return _Photo(image, str(entry["user_id"]), str(entry["partition"]), names)


def _targets(photos: list[_Photo], names: list[str]) -> NDArray[np.float32]:
    """Return the targets of photographs: 1 for each label of a photograph, 0 for all other labels.

    Args:
        photos: the photographs.
        names: all labels, in the order of the targets.

    Returns:
        The targets, float32 [n, labels].
    """
    target_of = {name: target for target, name in enumerate(names)}
    targets = np.zeros((len(photos), len(names)), np.float32)
    for row, photo in enumerate(photos):
        targets[row, [target_of[label] for label in photo.labels]] = 1.0
    return targets


def _decode(path: Path, side: int | None) -> NDArray[np.uint8]:
    """Decode an image, uint8 [height, width, 3].

    Args:
        path: the file of the image.
        side: height and width to which the image is scaled (pixels); None: it is not scaled.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        image = open_image(read_bytes(path))
        coloured = image.convert("RGB")
        if side is not None:
            coloured = coloured.resize((side, side), _BILINEAR)
        return np.asarray(coloured, dtype=np.uint8)
    except DataError:  # Pillow is missing
        raise
    except FileNotFoundError:
        raise DataError(f"'{path}' is missing, and {LABELS} lists it") from None
    except Exception as error:  # Pillow raises errors of many types for damaged images
        raise DataError(f"'{path}' cannot be read as an image: {error}") from None
