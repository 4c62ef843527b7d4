"""Cosines between the updates of a round, by the kind of pair."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Flags, Floats, Ints


def kinds_of_pairs(
    devices: Sequence[int], groups: Ints, truth: Ints | None
) -> dict[str, NDArray[np.bool_]]:
    """Divide the pairs of a round's updates into kinds, by the groups of their devices.

    The kinds show whether updates within the strategy's groups agree more than updates across them.
    A true group is a set of devices whose data are alike, as the data source knows it.

    - ``across``: the devices are in two groups of the strategy.
    - ``within``: they are in one group of the strategy, and the true groups are unknown.
    - ``unlike``: they are in one group of the strategy, and in two true groups.
    - ``settled``: they are in one group and one true group, and the group is pure: it has devices
      of only one true group.
    - ``alike``: they are in one group and one true group, and the group is mixed: it also has
      devices of other true groups.

    If the true groups are known, a pair with a device without a true group is of no kind.

    Args:
        devices: the device of each update.
        groups: group of each device in the strategy, int64 [all devices]; -1 for no group, which
            counts as one more group.
        truth: true group of each device, int64 [all devices]; -1 for no true group; None if the
            true groups are unknown.

    Returns:
        Kind -> whether each pair of updates is of this kind, bool [updates, updates].
    """
    # the row and the column of a pair are the positions of its two updates
    group_of_update = groups[list(devices)]
    same_group: Flags = group_of_update[:, None] == group_of_update
    if truth is None:
        return {"within": same_group, "across": ~same_group}
    truth_of_update = truth[list(devices)]
    same_truth: Flags = truth_of_update[:, None] == truth_of_update
    has_truth = truth_of_update >= 0
    both_known: Flags = has_truth[:, None] & has_truth
    # whether a group has devices of several true groups, [updates]
    in_mixed_group = np.array(
        [_is_mixed(truth[groups == group]) for group in group_of_update], dtype=np.bool_
    )
    return {
        "alike": same_group & same_truth & in_mixed_group & both_known,
        "unlike": same_group & ~same_truth & both_known,
        "settled": same_group & same_truth & ~in_mixed_group & both_known,
        "across": ~same_group & both_known,
    }


def _is_mixed(true_groups: Ints) -> bool:
    """Whether the devices of a group have several true groups; -1 is no true group."""
    return len(set(true_groups.tolist()) - {-1}) > 1


def spread_by_kind(units: Floats, kinds: Mapping[str, NDArray[np.bool_]]) -> dict[str, list[float]]:
    """Return least, mean and largest cosine of the pairs of each kind, rounded to six digits.

    Args:
        units: difference of each update from the model from which it was trained, divided by the
            Euclidean norm of the difference; float64 [updates, d].
        kinds: kind -> whether each pair is of this kind, bool [updates, updates].

    Returns:
        Kind -> least, mean and largest cosine; a kind without a finite cosine is left out.
    """
    with np.errstate(all="ignore"):
        cosines = units @ units.T
    is_pair = np.triu(np.isfinite(cosines), 1)  # each pair once, and no update with itself
    spreads: dict[str, list[float]] = {}
    for kind, is_kind in kinds.items():
        values = cosines[is_pair & is_kind]
        if len(values):
            extremes = [values.min(), values.mean(), values.max()]
            spreads[kind] = np.round(extremes, 6).tolist()
    return spreads
