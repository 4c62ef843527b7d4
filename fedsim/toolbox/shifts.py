"""Kinds of ``drift``, which change devices' data during a run.

Pairs of devices exchange a label, devices get more data, labels are permuted, or images rotate.
"""

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedsim.common.arrays import Ints
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.learning.data.federated import NO_GROUP, FederatedData, Shard
from fedsim.learning.data.shifts import Change, Occasions, Shift, draw_pairs, exchange

# subtracted before rounding up, so that a share of 0.07 of 100 samples is 7, not 8
_ROUNDING = 1e-9


class SwapPart(Shift):
    """Random pairs of candidates exchange all samples of a label (FlexCFL, section 5.3).

    An occasion is a round or time at which data shift. The devices that may change on it, the
    candidates, are paired at random. In a pair that exchanges, each device gives the other all
    samples of one of its exclusive labels, drawn at random. A device has a label if the label
    occurs in both its training and its test samples; the label is exclusive if the partner does not
    have it (code of FlexCFL). If one of the two devices has no exclusive label, the pair does not
    exchange.

    True groups are the groups with which groups found by clustering are compared. A device that has
    exchanged belongs to no true group afterwards (``NO_GROUP``). Scenarios in which devices rotate,
    relabel or distort their samples in different ways are refused, because an exchanged sample
    would lose its device's transform.

    Attributes:
        probability: probability that a pair exchanges, on each occasion.
        quirk: whether a pair that was drawn to exchange, but has no exclusive labels, also prevents
            all later pairs of the occasion from exchanging, as in the published code.
    """

    kind: Literal["swap-part"] = "swap-part"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)
    quirk: bool = False

    def check(self, data: FederatedData) -> None:
        if not data.pool.labelled:
            raise ScenarioError(
                "drift.kind is 'swap-part', which exchanges labels, and the data have targets "
                "instead"
            )
        for shard in data.shards:
            _require_same_transform(data.shards[0], shard)

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        """Pair the candidates; in a drawn pair each device gives the other all samples of a label.

        The other device does not have this label. Pairs without such labels do not exchange; with
        ``quirk`` the first such pair ends the exchanges of this occasion.
        """
        generator = streams.generator("world/drift", occasion)
        pairs = draw_pairs(candidates, generator)
        # one draw for all pairs, so that the numbers of a pair do not depend on other pairs
        pair_draws, first_draws, second_draws = generator.random((3, len(pairs)))
        changes: list[Change] = []
        for pair in np.flatnonzero(pair_draws < self.probability).tolist():
            first_device, second_device = pairs[pair].tolist()
            first_shard = data.current(first_device)
            second_shard = data.current(second_device)
            _require_same_transform(first_shard, second_shard)
            first_labels = _labels(data, first_shard)
            second_labels = _labels(data, second_shard)
            first_exclusive = np.setdiff1d(first_labels, second_labels)
            second_exclusive = np.setdiff1d(second_labels, first_labels)
            if len(first_exclusive) and len(second_exclusive):
                first_label = _choose(first_exclusive, first_draws[pair])
                second_label = _choose(second_exclusive, second_draws[pair])
                changes += exchange(
                    data,
                    first_device,
                    second_device,
                    _exchange_label(data, first_shard, second_shard, first_label, second_label),
                    _exchange_label(data, second_shard, first_shard, second_label, first_label),
                )
            elif self.quirk:
                break
        _set_groups(data, changes)
        return changes


def _labels(data: FederatedData, shard: Shard) -> Ints:
    """Return the labels that occur in both the training and the test samples of a device.

    Args:
        data: the data of all devices.
        shard: the training and test samples of the device.

    Returns:
        The labels, ascending.
    """
    return np.intersect1d(data.train_labels(shard), data.test_labels(shard))


def _choose(labels: Ints, draw: float) -> int:
    """Return one of the labels, all equally likely if ``draw`` is uniform in [0, 1)."""
    return int(labels[int(draw * len(labels))])


def _exchange_label(
    data: FederatedData, shard: Shard, partner: Shard, lost: int, gained: int
) -> Shard:
    """Replace a device's samples of the label ``lost`` by its partner's samples of ``gained``.

    Args:
        data: the data of all devices.
        shard: the training and test samples of the device.
        partner: the training and test samples of its partner.
        lost: label of the samples that are removed.
        gained: label of the partner's samples that are added.

    Returns:
        The device's new samples; ``shard`` stays as it is.
    """
    train = (
        shard.train[data.train_labels(shard) != lost],
        partner.train[data.train_labels(partner) == gained],
    )
    test = (
        shard.test[data.test_labels(shard) != lost],
        partner.test[data.test_labels(partner) == gained],
    )
    return Shard(np.concatenate(train), np.concatenate(test), shard.quarter_turns, shard.label_map)


def _require_same_transform(first: Shard, second: Shard) -> None:
    """Raise ``ScenarioError`` if devices that are to exchange samples transform them differently.

    A device may rotate images, permute labels, or distort images at random.
    """
    same_rotation = first.quarter_turns % 4 == second.quarter_turns % 4
    same_labels = _label_list(first) == _label_list(second)
    is_augmented = first.augment_seed is not None or second.augment_seed is not None
    if not same_rotation or not same_labels or is_augmented:
        raise ScenarioError(
            "drift.kind is 'swap-part', which moves single samples between devices, and here "
            "each device turns, labels or "
            'distorts them in its own way: allowed are data.augmentation = "none", a '
            "data.partition other than 'rotations' "
            "and 'permutations', and drift.kind = \"swap-all\""
        )


def _label_list(shard: Shard) -> list[int] | None:
    return None if shard.label_map is None else shard.label_map.tolist()


class Incremental(Shift):
    """On each occasion every candidate gets a larger share of its training data.

    An occasion is a round or time at which data shift; candidates are the devices that may change
    on it. From occasion k on a device trains on the share ``shares[k]`` of its samples, rounded up:
    the first samples in an order that is shuffled once for each device. Test data stay, and so does
    the true group, with which groups found by clustering are compared. Before the first occasion a
    device has all samples. By default the shares are 25, 50, 75 and 100 % from rounds 0, 50, 100
    and 150 on (FlexCFL, section 5.3).

    Attributes:
        shares: share of a device's training samples from each occasion on, in (0, 1], not falling.
        as_published: whether each share is taken of the samples that the device had on the previous
            occasion, as in the published code. Of n samples the default shares then leave n/4, n/8,
            3n/32 and 3n/32.
    """

    apart: ClassVar[bool] = True
    kind: Literal["incremental"] = "incremental"
    at: Occasions = Occasions(rounds=[0, 50, 100, 150])
    shares: list[Annotated[float, Field(gt=0.0, le=1.0)]] = Field(
        default=[0.25, 0.5, 0.75, 1.0], min_length=1
    )
    as_published: bool = False

    @field_validator("shares")
    @classmethod
    def _check_rising(cls, shares: list[float]) -> list[float]:
        if shares != sorted(shares):
            raise ValueError(f"{shares} fall; each share includes the one before it")
        return shares

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        """Give each candidate the share of its samples that is released by this occasion.

        The released samples are the first in a random order, which is equal on all occasions.
        """
        changes: list[Change] = []
        if occasion >= len(self.shares):
            return changes
        for device in np.sort(candidates).tolist():
            all_samples = data.shards[device].train
            size = self.released(len(all_samples), occasion)
            if size == len(data.current(device).train):  # nothing changes
                continue
            order = streams.generator("world/drift/order", device).permutation(len(all_samples))
            shard = replace(data.shards[device], train=all_samples[order[:size]])
            changes.append(Change(device, data.replace_shard(device, shard)))
        return changes

    def released(self, samples: int, occasion: int) -> int:
        """Return how many training samples a device has after an occasion of the shift; at least 1.

        Args:
            samples: count of all training samples of the device.
            occasion: index of the occasion, from 0.
        """
        size = samples
        for share in self.shares[: occasion + 1]:
            # in the published code a share is of the samples that were released before
            whole = size if self.as_published else samples
            size = math.ceil(whole * share - _ROUNDING)
        return max(1, size)


class LabelPermutation(Shift):
    """Each candidate permutes its labels with some probability, while its images stay.

    Data shift on occasions, which are rounds or times; candidates are the devices that may change
    on an occasion. The permutation is drawn uniformly from all except the identity, and applied to
    the current labels of training and test samples. True groups are the groups with which groups
    found by clustering are compared; a device that has changed belongs to no true group afterwards
    (``NO_GROUP``). The draws of a device do not depend on other candidates.

    Attributes:
        probability: probability that a candidate changes, on each occasion.
    """

    apart: ClassVar[bool] = True
    kind: Literal["label-permutation"] = "label-permutation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def check(self, data: FederatedData) -> None:
        """Raise ``ScenarioError`` unless samples have labels of two classes at least."""
        if data.pool.targets is not None:
            raise ScenarioError(
                "drift.kind is 'label-permutation', which gives labels other meanings, and the "
                "model learns targets instead; "
                "allowed without data.column, and with objective.kind = 'classification'"
            )
        if data.pool.classes < 2:
            raise ScenarioError(
                "drift.kind is 'label-permutation'; the data have 1 class, and at least 2 are "
                "needed"
            )

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        """Permute the labels of random devices, each by a random permutation.

        Args:
            data: the data of all devices, changed in place.
            occasion: index of the occasion (a round or time at which data shift), from 0.
            candidates: indices of the devices that may change, int64.
            streams: random streams of the run.

        Returns:
            The changes, one for each device whose labels are permuted.
        """
        self.check(data)
        changes = list[Change]()
        identity = np.arange(data.pool.classes)
        selection = streams.generator("world/drift", occasion)
        for device in _draw_devices(data, candidates, self.probability, selection):
            shard = data.current(device)
            generator = streams.generator("world/drift", occasion, device)
            label_map = identity
            while np.array_equal(label_map, identity):  # the identity would change nothing
                label_map = generator.permutation(data.pool.classes)
            if shard.label_map is not None:  # permute labels that are permuted already
                label_map = label_map[shard.label_map]
            version = data.replace_shard(device, replace(shard, label_map=label_map))
            changes.append(Change(device, version))
        _set_groups(data, changes)
        return changes


class Rotation(Shift):
    """Each candidate's images rotate, with some probability, by one to three quarter turns.

    Data shift on occasions, which are rounds or times; candidates are the devices that may change
    on an occasion. Training and test images of a device rotate by the same angle. The draws of a
    device do not depend on other candidates.

    True groups are the groups with which groups found by clustering are compared. A device that has
    changed is in no true group afterwards (``NO_GROUP``). With the partition ``rotations``, in
    which each true group has its own rotation, a changed device instead joins the true group with
    its new rotation, if there is one.

    Attributes:
        probability: probability that a candidate changes, on each occasion.
    """

    apart: ClassVar[bool] = True
    kind: Literal["rotation"] = "rotation"
    probability: float = Field(default=0.05, ge=0.0, le=1.0)

    def check(self, data: FederatedData) -> None:
        shape = data.pool.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise ScenarioError(
                "drift.kind is 'rotation', which turns square images; the samples have the "
                f"shape {shape}"
            )

    def apply(
        self, data: FederatedData, occasion: int, candidates: Ints, streams: Streams
    ) -> list[Change]:
        """Turn the images of random candidates by 90, 180 or 270 degrees."""
        self.check(data)
        generator = streams.generator("world/drift", occasion)
        changes = list[Change]()
        devices = _draw_devices(data, candidates, self.probability, generator)
        # drawn for all devices, so that a device's draw does not depend on the other candidates
        turns = generator.integers(1, 4, len(data.shards)).tolist()
        for device in devices:
            shard = data.current(device)
            rotated = replace(shard, quarter_turns=(shard.quarter_turns + turns[device]) % 4)
            changes.append(Change(device, data.replace_shard(device, rotated)))
        _set_groups(data, changes, _group_of_turns(data))
        return changes


def _draw_devices(
    data: FederatedData, candidates: Ints, probability: float, generator: np.random.Generator
) -> list[int]:
    """Draw the candidates that change on an occasion.

    Args:
        data: the data of all devices.
        candidates: indices of the devices that may change.
        probability: probability that a candidate changes.
        generator: source of the random numbers.

    Returns:
        Indices of the devices that change, ascending.
    """
    changes = generator.random(len(data.shards)) < probability
    return [device for device in np.sort(candidates).tolist() if changes[device]]


def _set_groups(
    data: FederatedData, changes: list[Change], groups: dict[int, int] | None = None
) -> None:
    """Update the true groups of devices whose data have changed, if true groups are known.

    Args:
        data: the data of all devices; ``data.truth`` is changed in place.
        changes: the changes of an occasion, one for each changed device.
        groups: quarter turns of a device's images -> true group. A device whose turns are not in
            the dict gets no group (``NO_GROUP``). None: all changed devices get no group.
    """
    if data.truth is None:
        return
    for change in changes:
        group = NO_GROUP
        if groups is not None:
            group = groups.get(data.current(change.device).quarter_turns, NO_GROUP)
        data.truth[change.device] = group


def _group_of_turns(data: FederatedData) -> dict[int, int]:
    """Return the true group that has each rotation at the beginning of the run.

    Returns:
        Quarter turns -> true group; empty if the true groups are unknown, or if groups and
        rotations do not correspond one to one.
    """
    if data.initial_truth is None:
        return {}
    pairs = set()  # (quarter turns, group)
    for shard, group in zip(data.shards, data.initial_truth.tolist(), strict=False):
        pairs.add((shard.quarter_turns % 4, group))
    turns = {turn for turn, _ in pairs}
    groups = {group for _, group in pairs}
    is_one_to_one = len(turns) == len(groups) == len(pairs)
    return dict(pairs) if is_one_to_one else {}
