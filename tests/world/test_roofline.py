"""Time and room of a model on a kind of device, worked out by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedsim.errors import ScenarioError
from fedsim.learning.profile import profile
from fedsim.model_cost import ModelCost
from fedsim.training import Part, Training
from fedsim.world.device_kinds import DeviceKind
from fedsim.world.roofline import Rooflines, operations_s
from tests.benchmarks.roofline import CLASSES, MODELS, batch_s, fit


def kind(**figures: Any) -> DeviceKind:
    """1 GFLOP/s, 1 GB/s and 1 MB, unless said otherwise."""
    whole = {"flops": "1 GFLOP/s", "flops_share": 1.0, "bandwidth": "1 GB/s", "bandwidth_share": 1.0}
    return DeviceKind(**whole | {"memory": "1 MB", "memory_share": 1.0} | figures)


def operation(fixed: Sequence[float], a_sample: Sequence[float]) -> list[float]:
    """FLOPs, bytes, bytes of further passes: in any case, and a sample; on ARM twice the FLOPs, and 1e6 more bytes a sample."""
    on_arm = [[2 * fixed[0], fixed[2]], [2 * a_sample[0], a_sample[2] + 1e6]]
    return [number for pair in zip([*fixed, *on_arm[0]], [*a_sample, *on_arm[1]], strict=True) for number in pair]


# An operation bound by its arithmetic (1 ms a sample), one bound by its data (2 ms in any case, and 1 ms a sample).
FORWARD = np.array([operation((0, 8, 0), (1e6, 8, 0)), operation((8, 2e6, 0), (8, 1e6, 0))])
COST = ModelCost(FORWARD, 2 * FORWARD, np.array([operation((0, 4e6, 0), (0, 0, 0))]), 1e5, 2e5, 1e5)
NOW = Training(None)


def rooflines(*kinds: DeviceKind, batch_size: int = 4) -> Rooflines:
    return Rooflines(kinds, np.arange(len(kinds)), COST, batch_size)


def test_each_operation_takes_the_longer_of_its_two_times() -> None:
    assert operations_s(FORWARD, 3, 1e9, 1e9) == pytest.approx(3e-3 + 5e-3)
    assert operations_s(FORWARD, 3, 1e9, 1e4) == pytest.approx((8 + 24) / 1e4 + 5e6 / 1e4)


def test_further_passes_come_on_top_and_a_gpu_spares_them() -> None:
    """1 ms of arithmetic or .5 ms of data, a sample; then 3 ms in any case, and 2 ms a sample."""
    passing = np.array([operation((0, 0, 3e6), (1e6, 5e5, 2e6))])
    assert operations_s(passing, 4, 1e9, 1e9) == pytest.approx(4e-3 + 3e-3 + 8e-3)
    assert operations_s(passing, 4, 1e9, 1e9, "gpu") == pytest.approx(4e-3)
    assert operations_s(passing, 4, 1e9, 1e9, "arm") == pytest.approx(8e-3 + 3e-3 + 12e-3)
    cost = ModelCost(passing, 0 * passing, 0 * passing, 0.0, 0.0, 0.0)
    devices = Rooflines((kind(), kind(gpu=True), kind(arm=True)), np.arange(3), cost, 4)
    assert [devices.training_s(device, NOW, 4) for device in range(3)] == pytest.approx([15e-3, 4e-3, 23e-3])


def test_an_epoch_by_hand() -> None:
    """A full batch of 4: three times (4 + 2 + 4) ms, and 4 ms of the optimiser; of 2: three times (2 + 2 + 2), and 4."""
    devices = rooflines(kind(), kind(batch="1 ms", epoch="5 ms"), kind(flops_share=0.5, bandwidth_share=0.5))
    full, rest = 34e-3, 22e-3
    assert devices.training_s(0, NOW, 10) == pytest.approx(2 * full + rest)
    assert devices.training_s(1, NOW, 10) == pytest.approx(2 * full + rest + 3e-3 + 5e-3)
    assert devices.training_s(2, NOW, 10) == pytest.approx(2 * (2 * full + rest))
    assert devices.training_s(0, NOW, 2) == pytest.approx(rest)
    assert devices.training_s(1, NOW, 0) == pytest.approx(5e-3)
    samples = np.array([10, 10, 10])
    assert devices.epochs_s(samples) == pytest.approx([devices.training_s(device, NOW, 10) for device in range(3)])
    assert devices.speeds() == pytest.approx([4 / full, 4 / (full + 1e-3), 2 / full])


def test_full_batches_steps_and_parts() -> None:
    devices = rooflines(kind())
    assert devices.training_s(0, Training(None, full_batch=True), 10) == pytest.approx(3 * (10 + 2 + 10) * 1e-3 + 4e-3)
    per_pass = 2 * 34e-3 + 22e-3
    assert devices.training_s(0, Training(None, steps=7), 10) == pytest.approx(2 * per_pass + 34e-3)
    assert devices.training_s(0, Training(None, steps=2), 3) == pytest.approx(2 * (3 * (3 + 2 + 3) + 4) * 1e-3)
    part = Part(1, 1, 10)
    assert devices.training_s(0, Training(None, part=part), part.samples) == pytest.approx(34e-3 + 3 * 4e-3 + 4e-3)


def test_a_test_is_the_forward_pass_alone() -> None:
    assert rooflines(kind()).testing_s(0, 10) == pytest.approx(2 * 10e-3 + 6e-3)
    assert rooflines(kind()).testing_s(0, 0) == 0


def test_room() -> None:
    """Training takes 200 kB, and 100 kB for each sample of a batch."""
    devices = rooflines(kind(memory="600 kB"), kind(memory="599 kB", epoch="1 ms"), kind(memory="99 kB"))
    assert [devices.failing_s(device, NOW, 10) for device in range(3)] == [None, pytest.approx(11e-3), pytest.approx(10e-3)]
    assert devices.failing_s(1, NOW, 3) is None  # a smaller batch
    assert devices.failing_s(0, Training(None, full_batch=True), 5) is not None
    assert [devices.failing_s(device, None, 10) is None for device in range(3)] == [True, True, False]
    devices.check(10)
    with pytest.raises(ScenarioError, match=r"takes 300 kB, and no device has room for it: .* leaves 250 kB"):
        rooflines(kind(memory="0.5 MB", memory_share=0.5)).check(1)


def test_what_was_fitted_to_exact_times_is_found_again() -> None:
    """The benchmark's fit, on the models' own operations: two numbers out of four times."""
    names = ("logistic", "mlp-1024", "cnn-16-32", "mlp-128")
    costs = {name: profile(MODELS[name][0](), MODELS[name][1], CLASSES) for name in names}
    times = {name: batch_s(cost, 40e9, 6e9, 1e-4) for name, cost in costs.items()}
    assert fit(costs, times, 1e-4) == pytest.approx((40e9, 6e9), rel=1e-4)
