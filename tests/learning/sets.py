"""Datasets as users bring them: those whose items follow from their index, and those whose items
draw or change.
"""

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

SIZE = 24
CLASSES = 3
_CALLS = {"made": 0}


def images() -> np.ndarray[Any, np.dtype[np.float32]]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(SIZE, 1, 6, 6)).astype(np.float32)


class Plain(Dataset[Any]):
    """The base of all: random images, and labels in turn."""

    def __init__(self) -> None:
        self.x = images()
        self.y = np.arange(SIZE) % CLASSES

    def __len__(self) -> int:
        return len(self.x)

    def sample(self, place: int) -> Any:
        return self.x[place]

    def target(self, place: int) -> Any:
        return int(self.y[place])

    def __getitem__(self, place: int) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self.sample(place), self.target(place)


# Items that follow from their index.


class Tensors(Plain):
    def sample(self, place: int) -> Any:
        return torch.tensor(self.x[place])


class Mappings(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"x": self.x[place], "y": torch.tensor(self.target(place))}


class Lists(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place].ravel().tolist()


class Bfloat(Plain):
    def sample(self, place: int) -> Any:
        return torch.tensor(self.x[place], dtype=torch.bfloat16)


class Half(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place].astype(np.float16)


class Double(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place].astype(np.float64)


class Gradients(Plain):
    def sample(self, place: int) -> Any:
        return torch.tensor(self.x[place], requires_grad=True)


class SeedsOwnGenerator(Plain):
    """Label noise that a generator with a seed draws once."""

    def __init__(self) -> None:
        super().__init__()
        self.y = np.random.default_rng(7).integers(0, CLASSES, SIZE)


class SeedsAll(Plain):
    """Seeds the shared generators, and draws its samples from them."""

    def __init__(self) -> None:
        super().__init__()
        random.seed(1)
        torch.manual_seed(1)
        self.x = torch.randn(SIZE, 1, 6, 6).numpy() + random.random()


class SeedsByIndex(Plain):
    """An augmentation whose draw follows from the index."""

    def sample(self, place: int) -> Any:
        return self.x[place] * random.Random(place).choice([1.0, -1.0])


def joined() -> ConcatDataset:  # type: ignore[type-arg]
    return ConcatDataset([Plain(), Plain()])


def tensors() -> TensorDataset:
    return TensorDataset(torch.tensor(images()), torch.arange(SIZE) % CLASSES)


def split_by_seed() -> Subset:  # type: ignore[type-arg]
    return random_split(Plain(), [20, 4], torch.Generator().manual_seed(3))[0]


ALIKE = (
    "Plain",
    "Tensors",
    "Mappings",
    "Lists",
    "Bfloat",
    "Half",
    "Double",
    "Gradients",
    "SeedsOwnGenerator",
    "SeedsAll",
)
ALIKE += ("SeedsByIndex", "joined", "tensors", "split_by_seed")


# Items that draw, or depend on the order of reading.


class PythonDraws(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] * np.float32(random.choice([1.0, -1.0]))


class NumpyDraws(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] + np.random.normal(size=self.x[place].shape).astype(np.float32)  # noqa: NPY002


class TorchDraws(Plain):
    """Flips as torchvision's transforms do."""

    def sample(self, place: int) -> Any:
        image = torch.tensor(self.x[place])
        return image.flip(-1) if torch.rand(1) < 0.5 else image


class RareDraws(Plain):
    """No item shows that it draws."""

    def sample(self, place: int) -> Any:
        return self.x[place] if random.random() < 1.0 else -self.x[place]


class Unseeded(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng()

    def sample(self, place: int) -> Any:
        return self.x[place] + self.draw.normal()


class UnseededEachTime(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] + random.SystemRandom().random()


class SeededButInOrder(Plain):
    """The draw of an item depends on the items that were read before."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(0)

    def sample(self, place: int) -> Any:
        return self.x[place] + self.draw.normal()


class DrawnOnce(SeededButInOrder):
    """Items are drawn when they are first read, in the order of reading, and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}

    def sample(self, place: int) -> Any:
        if place not in self.kept:
            self.kept[place] = super().sample(place)
        return self.kept[place]


class SeededInOrder(Plain):
    """Seeds the shared generator once, and draws from it in each item."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)

    def sample(self, place: int) -> Any:
        return torch.tensor(self.x[place]) + torch.randn(1)


class Clock(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] + (time.time_ns() % 1_000_003) / 1e6


class Counter(Plain):
    """Items are read in an order, as a curriculum does."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def sample(self, place: int) -> Any:
        self.reads += 1
        return self.x[place] * self.reads


class Epochs(Plain):
    """Other items in the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def sample(self, place: int) -> Any:
        self.reads += 1
        return self.x[place] * (1 + (self.reads - 1) // len(self))


class Previous(Plain):
    """Mixes an item with the one that was read before (mixup)."""

    def __init__(self) -> None:
        super().__init__()
        self.last = np.zeros_like(self.x[0])

    def sample(self, place: int) -> Any:
        mixed = (self.x[place] + self.last) / 2
        self.last = self.x[place]
        return mixed


class InPlace(Plain):
    """Changes what it holds."""

    def sample(self, place: int) -> Any:
        self.x[place] *= 2
        return self.x[place].copy()


class DrawsLabels(Plain):
    def target(self, place: int) -> Any:
        return random.randrange(CLASSES)


class DrawsWhenMade(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.y = np.random.permutation(self.y)  # noqa: NPY002


class OneLabelDrawnWhenMade(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.y[random.randrange(SIZE)] = random.randrange(CLASSES)


class OtherWhenMadeAgain(Plain):
    """Each instance differs from the one before."""

    def __init__(self) -> None:
        super().__init__()
        _CALLS["made"] += 1
        self.x = self.x * _CALLS["made"]


class OtherLength(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.x = self.x[: 10 + time.time_ns() // 64 % 10]


def split_without_seed() -> Subset:  # type: ignore[type-arg]
    return random_split(Plain(), [20, 4])[0]


DRAWN = (
    "PythonDraws",
    "NumpyDraws",
    "TorchDraws",
    "RareDraws",
    "Unseeded",
    "UnseededEachTime",
    "SeededButInOrder",
)
DRAWN += (
    "DrawnOnce",
    "SeededInOrder",
    "Clock",
    "Counter",
    "Epochs",
    "Previous",
    "InPlace",
    "DrawsLabels",
)
DRAWN += ("DrawsWhenMade", "OneLabelDrawnWhenMade", "OtherWhenMadeAgain", "split_without_seed")


# Items that cannot be read.


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(images(), range(SIZE), strict=True))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return SIZE


class NoLength(Dataset[Any]):
    def __getitem__(self, place: int) -> Any:
        return images()[place], 0


class Empty(Plain):
    def __len__(self) -> int:
        return 0


class TooLong(Plain):
    def __len__(self) -> int:
        return 2 * SIZE

    def __getitem__(self, place: int) -> Any:
        return self.x[place], 0


class Triples(Plain):
    def __getitem__(self, place: int) -> Any:
        return self.x[place], 0, place


class Alone(Plain):
    def __getitem__(self, place: int) -> Any:
        return self.x[place]


class Nothing(Plain):
    def __getitem__(self, place: int) -> Any:
        return None


class Words(Plain):
    def target(self, place: int) -> Any:
        return ["cat", "dog", "fox"][self.y[place]]


class Texts(Plain):
    def sample(self, place: int) -> Any:
        return f"sentence {place}"


class Ragged(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place].ravel()[: 5 + place]


class OtherKeys(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"x": self.x[place], "y": 0} if place else {"x": self.x[place], "label": 0}


class OtherNames(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"image": self.x[place], "label": 0}


class FurtherEntry(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"x": self.x[place], "y": 0, "weight": 0.5}


class FurtherText(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"x": self.x[place], "y": 0, "file": f"{place}.png"}


class FurtherColumn(Plain):
    def __getitem__(self, place: int) -> Any:
        return {"x": self.x[place], "y": 0, "writer": place % 2}


class NestedSample(Plain):
    def sample(self, place: int) -> Any:
        return {"pixels": self.x[place]}


class Missing(Plain):
    def target(self, place: int) -> Any:
        return None


class Complex(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] * 1j


class Flags(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] > 0


class Sixteen(Plain):
    def sample(self, place: int) -> Any:
        return (self.x[place] * 1000).astype(np.int16)


class ChannelsLast(Plain):
    def sample(self, place: int) -> Any:
        return np.zeros((16, 16, 3), np.uint8) + place


class NaNs(Plain):
    def sample(self, place: int) -> Any:
        return self.x[place] * (np.nan if place == 7 else 1.0)


class Negative(Plain):
    def target(self, place: int) -> Any:
        return self.y[place] - 1


class Fails(Plain):
    def target(self, place: int) -> Any:
        return 1 // (place - 5)


class FailsWhenMade(Plain):
    def __init__(self) -> None:
        raise FileNotFoundError("no such folder")


class FailsWhenMadeAgain(Plain):
    """Can be made once in a program."""

    def __init__(self) -> None:
        super().__init__()
        _CALLS["once"] = _CALLS.get("once", 0) + 1
        if _CALLS["once"] > 1:
            raise RuntimeError("the file is in use")


REFUSED = {
    "Stream": "an IterableDataset",
    "StreamWithLength": "an IterableDataset",
    "NoLength": "without a length",
    "Empty": "has no items",
    "TooLong": "item 24: IndexError",
    "Triples": "item 0 is a tuple of 3",
    "Alone": "item 0 is a ndarray",
    "Nothing": "item 0 is a NoneType",
    "Words": "'y' is text",
    "Texts": "'x' is text",
    "Ragged": "item 1 has 'x' of shape",
    "OtherKeys": "item 1 has x, y; item 0 has x, label",
    "OtherNames": "it has image, label",
    "FurtherEntry": "nothing uses the array 'weight'",
    "FurtherText": "nothing uses the array 'file'",
    "FurtherColumn": "nothing uses the columns writer",
    "NestedSample": "'x', a dict that is no array",
    "Missing": "'y', a NoneType that is no array",
    "Complex": "type complex",
    "Flags": "type bool",
    "Sixteen": "type int16",
    "ChannelsLast": "channels-last",
    "NaNs": "not finite",
    "Negative": "has the label -1",
    "Fails": "item 5: ZeroDivisionError",
    "FailsWhenMade": "cannot be made: FileNotFoundError",
    "FailsWhenMadeAgain": "cannot be made: RuntimeError: the file is in use",
}
