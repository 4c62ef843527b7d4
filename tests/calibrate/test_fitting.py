"""Devices and links that are known, from the times that they would have taken."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedsim.calibrate.fitting import Presence, fit, presence
from fedsim.calibrate.log import LogDefaults, read_log
from fedsim.world.network.protocol import Tcp
from tests.calibrate.logs import DEVICES, SIZE, rounds, task, written


def fitted_to(text: str, folder: Path, latency: float | None = None):  # type: ignore[no-untyped-def]
    log = read_log(written(folder / "log.csv", text), LogDefaults())
    return fit(log.tasks, len(log.clients), latency)


def test_speeds_and_links_without_noise(tmp_path: Path) -> None:
    found = fitted_to(rounds(4), tmp_path)
    speed, down, up = (np.array(of) for of in zip(*DEVICES, strict=True))
    np.testing.assert_allclose(found.world.speed, speed)
    np.testing.assert_allclose(found.world.down, down)
    np.testing.assert_allclose(found.world.up, up)
    assert found.world.jitter == 0
    assert found.world.server == {"down": math.inf, "up": math.inf}
    assert not found.latency_is_known
    assert np.isnan(found.overhead).all()


def test_sizes_that_differ_tell_latency_from_rate(tmp_path: Path) -> None:
    for latency in (None, 0.2):
        found = fitted_to(rounds(6, sizes=(1e5, 1e6, 3e6), wait=0.2), tmp_path, latency)
        assert found.latency_is_known
        np.testing.assert_allclose(found.world.latency, 0.2, rtol=1e-6)
        np.testing.assert_allclose(found.world.up, [device[2] for device in DEVICES], rtol=1e-6)


def test_sizes_that_differ_tell_latency_from_slow_start(tmp_path: Path) -> None:
    """By TCP with 0.02 s of latency: after n round trips of 0.04 s, each twice the window before, at the link's rate."""
    tcp, text = Tcp(), ""
    for number, size in enumerate((1e6, 2e6, 4e6, 1e6, 2e6, 4e6)):
        for name, (speed, down, up) in enumerate(DEVICES):
            wire, begin, took = size * 1514 / 1448, 1000.0 + 100 * number, []
            for rate in (down, up):
                rounds = math.ceil(math.log2(rate * 0.04 / 15140)) if rate * 0.04 > 15140 else 0
                took.append(0.02 + rounds * 0.04 + (wire - 15140 * (2**rounds - 1)) / rate)
            text += task(str(name), number, begin, (speed, size / took[0], size / took[1]), size=size)
    log = read_log(written(tmp_path / "log.csv", text), LogDefaults())
    links = fit(log.tasks, 3, None, tcp).world
    np.testing.assert_allclose(links.latency, 0.02, rtol=1e-6)
    np.testing.assert_allclose(links.down, [device[1] for device in DEVICES], rtol=1e-6)
    np.testing.assert_allclose(links.up, [device[2] for device in DEVICES], rtol=1e-6)


def test_a_few_odd_rows_move_nothing(tmp_path: Path) -> None:
    slow = task("phone 0", 9, 1900.0, (2.0, 1e5, 1e4))
    found = fitted_to(rounds(9) + slow, tmp_path)
    np.testing.assert_allclose(found.world.speed, [device[0] for device in DEVICES])
    np.testing.assert_allclose(found.world.down, [device[1] for device in DEVICES])
    assert found.world.jitter == 0


def test_jitter(tmp_path: Path) -> None:
    noise = np.random.default_rng(2)
    sigma = math.sqrt(math.log1p(0.2**2))
    factors = np.exp(sigma * noise.standard_normal((300, 3)) - sigma**2 / 2).tolist()
    text = "".join(
        task(str(one), number, 100.0 * number, (speed / factors[number][one], down, up))
        for number in range(300)
        for one, (speed, down, up) in enumerate(DEVICES)
    )
    found = fitted_to(text, tmp_path)
    assert found.world.jitter == pytest.approx(0.2, rel=0.05)
    np.testing.assert_allclose(found.world.speed, [device[0] for device in DEVICES], rtol=0.03)  # 0.2 / sqrt(300) = 0.012


def test_a_fixed_part_of_trainings(tmp_path: Path) -> None:
    text = ""
    for number, samples in enumerate((50, 100, 200, 400)):
        lines = task("a", number, 100.0 * number, (samples / (3.0 + samples / 20.0), 1e6, 1e6), samples=samples)
        text += lines + task("b", number, 100.0 * number, (20.0, 1e6, 1e6))
    found = fitted_to(text, tmp_path)
    assert found.overhead[0] == pytest.approx(3.0)
    assert math.isnan(found.overhead[1])


def shared(capacity: float, own: list[float], count: int) -> str:
    """Downloads of different cohorts that begin at once behind one link: all get the same share, or what their own carries."""
    text = ""
    for number in range(count):
        cohort = [one for one in range(len(own)) if (number + one) % 4]
        left, at, ends = dict.fromkeys(cohort, SIZE), 0.0, {}
        while left:  # progressive filling, by hand
            room, rate, free = capacity, {}, sorted(left, key=lambda one: own[one])
            for place, one in enumerate(free):
                rate[one] = min(own[one], room / (len(free) - place))
                room -= rate[one]
            step = min(left[one] / rate[one] for one in left)
            at += step
            left = {one: rest - rate[one] * step for one, rest in left.items()}
            ends |= {one: at for one, rest in left.items() if rest < 1e-3}
            left = {one: rest for one, rest in left.items() if rest >= 1e-3}
        for one in cohort:
            begin = 100.0 * number
            text += task(str(one), number, begin, (20.0, SIZE / ends[one], 1e6))
    return text


def test_a_limit_at_the_server_is_told_from_the_clients_own_links(tmp_path: Path) -> None:
    own = [1e6, 1.2e6, 1.4e6, 8e6, 3e6, 8e6]
    found = fitted_to(shared(6e6, own, 12), tmp_path).world
    assert found.server["down"] == pytest.approx(6e6, rel=0.02)
    assert found.server["up"] == math.inf
    np.testing.assert_allclose(found.down[:3], own[:3], rtol=0.02)  # the third is held up now and then


def test_presence_of_those_who_miss_a_round(tmp_path: Path) -> None:
    lines = [task(str(one), number, 100.0 * number, DEVICES[0]) for number in range(10) for one in range(5)
             if not (one == 1 and number in (4, 5)) and not (one == 3 and number == 8)]  # fmt: skip
    log = read_log(written(tmp_path / "log.csv", "".join(lines)), LogDefaults())
    there = presence(log)
    assert there is not None
    whole = 905.0  # from the first round to the end of the last
    assert there.mean_on == pytest.approx((5 * whole - 300.0) / 2)  # two leave
    assert there.mean_off == pytest.approx(150.0)  # and come back, after 200 s and 100 s
    np.testing.assert_allclose(there.share, [1, 1 - 200 / whole, 1, 1 - 100 / whole, 1])


def test_presence_that_the_log_says_and_that_cohorts_do_not_tell(tmp_path: Path) -> None:
    def of(lines: str) -> Presence | None:
        return presence(read_log(written(tmp_path / "log.csv", lines), LogDefaults()))

    on = ("phone 0,,on,1000,1040", "phone 0,,on,1100,1211.25", "phone 1,,on,1000,1211.25", "phone 2,,on,1000,1211.25")
    there = of(rounds(3) + "".join(f"{line},,\n" for line in on))
    assert there is not None
    assert there.mean_off == pytest.approx(60.0)
    assert there.share[0] == pytest.approx(1 - 60 / 211.25)
    assert of(rounds(3)) is None  # nobody is ever away
    asked = (
        task(str(one), number, 100.0 * number, DEVICES[0]) for number in range(9) for one in range(6) if (one + number) % 3
    )
    assert of("".join(asked)) is None  # two of three are asked


def test_many_clients_of_one_rate_share_a_link(tmp_path: Path) -> None:
    """Ten at once get 100 kB/s each: three of them alone would get a third of the whole, not a tenth."""
    found = fitted_to(rounds(4, [(20.0, 1e5, 1e5)] * 10), tmp_path)
    assert found.world.server == pytest.approx({"down": 1e6, "up": 1e6})
    assert found.world.down.tolist() == pytest.approx([1e6] * 10)
    assert "taken for one link that they share, of 8 Mbit/s" in found.notes[0]


def test_tiny_messages_tell_no_rate_and_nothing_is_infinite(tmp_path: Path) -> None:
    small = fitted_to(rounds(4, sizes=(1000.0,)), tmp_path)
    assert all("they tell latency, not the links' rates" in note for note in small.notes)
    only = fitted_to("".join(line for line in rounds(4).splitlines(True) if ",down," not in line), tmp_path)
    assert only.world.down.tolist() == only.world.up.tolist()
    assert only.notes == ("nothing tells the links down: they are taken for those up",)
