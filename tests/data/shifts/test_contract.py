"""What every rule promises."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedsim.data.federated import FederatedData, Shard
from fedsim.data.shifts import Incremental, LabelPermutation, Rotation, Shift, ShiftSpec, SwapAll, SwapPart
from fedsim.streams import Streams
from tests.data.shifts.conftest import all_samples, everyone, one_class_each, populations, samples

RULES = [SwapAll(probability=0.5), SwapPart(probability=0.5), Incremental(), LabelPermutation(probability=0.5), Rotation()]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
chancy = pytest.mark.parametrize("rule", [SwapAll, SwapPart, LabelPermutation, Rotation], ids=lambda rule: rule.__name__)


def frozen(data: FederatedData) -> list[tuple[object, ...]]:
    """Version 0, to the last bit."""
    return [
        (s.train.tobytes(), s.test.tobytes(), s.quarter_turns, None if s.label_map is None else s.label_map.tobytes())
        for s in data.shards
    ]


def same(one: Shard, other: Shard) -> bool:
    return (
        np.array_equal(one.train, other.train)
        and np.array_equal(one.test, other.test)
        and one.quarter_turns == other.quarter_turns
        and np.array_equal(one.label_map, other.label_map)  # type: ignore[arg-type]
        and one.augment_seed == other.augment_seed
    )


@each_rule
@given(st.data(), st.integers(0, 2**30), st.integers(0, 3))
def test_a_shift_is_a_function_of_seed_occasion_and_who_may(rule: Shift, draw: st.DataObject, seed: int, occasion: int) -> None:
    data = draw.draw(populations(alike=rule.kind == "swap-part"))
    twin, before = deepcopy(data), frozen(data)
    may = np.array(draw.draw(st.lists(st.sampled_from(range(len(data.shards))), unique=True)), dtype=np.int64)
    changes = rule.apply(data, occasion, may, Streams(seed))
    assert rule.apply(twin, occasion, np.sort(may), Streams(seed)) == changes, "the order of the candidates is of no account"
    for device in range(len(data.shards)):
        assert same(data.current(device), twin.current(device))
    assert data.truth is not None
    assert twin.truth is not None
    assert np.array_equal(data.truth, twin.truth)

    devices = [change.device for change in changes]
    assert len(set(devices)) == len(devices)
    assert set(devices) <= set(may.tolist())
    assert frozen(data) == before, "old versions stay"
    for device in range(len(data.shards)):
        assert data.version(device) == (device in devices)
        assert len(data.current(device).train) >= 1
    for change in changes:
        assert data.shard(change.device, change.version) is data.current(change.device)
    assert np.array_equal(np.delete(data.truth, devices), np.delete(data.initial_truth, devices))


@each_rule
def test_occasions_differ_and_nobody_is_no_error(rule: Shift) -> None:
    data = [one_class_each(40) for _ in range(3)]
    first, again, second = (rule.apply(d, k, everyone(d), Streams(1)) for d, k in zip(data, (0, 0, 1), strict=True))
    if rule.kind != "incremental":  # its devices have one sample each, and keep it
        assert first == again != second
    assert rule.apply(data[0], 2, np.empty(0, dtype=np.int64), Streams(1)) == []


@chancy
def test_probability(rule: type[SwapAll]) -> None:
    data = one_class_each(40)
    assert rule(probability=0.0).apply(data, 0, everyone(data), Streams(1)) == []
    changed = [change.device for change in rule(probability=1.0).apply(data, 0, everyone(data), Streams(1))]
    if rule is SwapPart:  # a pair of the same class has nothing to exchange
        assert 20 <= len(changed) < 40
    else:
        assert sorted(changed) == list(range(40))
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValidationError):
            rule(probability=wrong)


@pytest.mark.parametrize("rule", [LabelPermutation(probability=0.5), Rotation(probability=0.5)], ids=lambda rule: rule.kind)
def test_what_one_device_meets_is_not_for_others_to_decide(rule: Shift) -> None:
    among_all, alone = one_class_each(30), one_class_each(30)
    rule.apply(among_all, 3, everyone(among_all), Streams(2))
    for device in range(30):
        rule.apply(alone, 3, np.array([device]), Streams(2))
    assert all(same(among_all.current(device), alone.current(device)) for device in range(30))


@given(populations(), st.integers(0, 2**30))
def test_a_swap_of_everything_loses_and_makes_no_sample(data: FederatedData, seed: int) -> None:
    before = all_samples(data)
    for occasion in range(3):
        SwapAll(probability=0.7).apply(data, occasion, everyone(data), Streams(seed))
    assert all_samples(data) == before


@given(populations(alike=True), st.integers(0, 2**30), st.booleans())
def test_nor_does_a_swap_of_a_part(data: FederatedData, seed: int, quirk: bool) -> None:
    before = all_samples(data)
    for occasion in range(3):
        SwapPart(probability=0.7, quirk=quirk).apply(data, occasion, everyone(data), Streams(seed))
    assert all_samples(data) == before, "training samples stay training samples, test samples test samples"


@given(populations(alike=True), st.integers(0, 2**30))
def test_two_same_swaps_restore_everything(data: FederatedData, seed: int) -> None:
    before = [samples(data, shard) for shard in data.shards]
    for rule in (SwapAll(probability=0.7), SwapAll(probability=0.7)):
        rule.apply(data, 5, everyone(data), Streams(seed))
    assert [samples(data, data.current(device)) for device in range(len(data.shards))] == before
    assert np.array_equal(data.truth, data.initial_truth)  # type: ignore[arg-type]


def test_a_name_is_short_for_a_table() -> None:
    spec: TypeAdapter[Shift] = TypeAdapter(ShiftSpec)
    assert spec.validate_python("swap-all") == SwapAll(probability=0.05)
    assert spec.validate_python({"kind": "incremental", "as_published": True}) == Incremental(as_published=True)
    for rule in RULES:
        assert spec.validate_python(rule.model_dump()) == rule
    with pytest.raises(ValidationError, match="swap-some"):
        spec.validate_python("swap-some")
    with pytest.raises(ValidationError, match="unknown key 'chance'"):
        spec.validate_python({"kind": "rotation", "chance": 0.5})
