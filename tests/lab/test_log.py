"""Logs as they are met: what is read and refused, with one message each; devices and links that
are known are found in them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsim.common.errors import DataError
from fedsim.lab.calibrate.fitting import Fitted, fit
from fedsim.lab.calibrate.log import Log, LogDefaults, read_log
from fedsim.lab.calibrate.presence import Presence, estimate_presence
from fedsim.lab.calibrate.tasks import durations, spans
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world, run
from fedsim.world.network.protocol import Tcp

SIZE = 1e6
"""Bytes of a message."""

Device = tuple[float, float, float]
"""Samples/s, and bytes/s down and up."""

DEVICES: Sequence[Device] = ((50.0, 1e6, 5e5), (20.0, 2e6, 2.5e5), (10.0, 4e6, 1e6))
HEAD = "client,round,what,start,end,bytes,samples"


def task(
    name: str,
    number: int,
    begin: float,
    device: Device,
    size: float = SIZE,
    samples: int = 100,
    wait: float = 0.0,
) -> str:
    speed, down, up = device
    got = begin + wait + size / down
    trained = got + samples / speed
    return (
        f"{name},{number},down,{begin!r},{got!r},{size:g},\n{name},{number},train,{got!r},{trained!r},,{samples}\n"
        f"{name},{number},up,{trained!r},{trained + wait + size / up!r},{size:g},\n"
    )


def written(path: Path, text: str, head: str = HEAD) -> Path:
    path.write_text(f"{head}\n{text}")
    return path


def rounds(
    count: int,
    devices: Sequence[Device] = DEVICES,
    sizes: Sequence[float] = (SIZE,),
    wait: float = 0.0,
) -> str:
    """Synchronous rounds of all devices, 100 s apart; sizes take turns."""
    return "".join(
        task(
            f"phone {name}",
            number,
            1000.0 + 100.0 * number,
            device,
            sizes[number % len(sizes)],
            wait=wait,
        )
        for number in range(count)
        for name, device in enumerate(devices)
    )


def round_s(devices: Sequence[Device] = DEVICES) -> float:
    return max(SIZE / down + 100 / speed + SIZE / up for speed, down, up in devices)


assert math.isclose(round_s(), 0.25 + 10 + 1)


GOOD = rounds(3)
SPEED, DOWN, UP = (np.array(of) for of in zip(*DEVICES, strict=True))


def read(text: str, folder: Path, head: str = HEAD) -> Log:
    return read_log(written(folder / "log.csv", text, head), LogDefaults())


def test_tasks_and_rounds_are_found_whatever_the_order_of_rows(tmp_path: Path) -> None:
    lines = GOOD.splitlines(keepends=True)
    for order in (lines, lines[::-1], lines[1::2] + lines[::2]):
        log = read("".join(order), tmp_path)
        assert log.clients == ("phone 0", "phone 1", "phone 2")
        assert log.synchronous
        assert log.tasks.number.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        np.testing.assert_allclose(log.rounds.start, [0, 100, 200])
        np.testing.assert_allclose(log.rounds.end, [11.25, 111.25, 211.25])
        first = log.tasks[log.tasks.client == 1]
        np.testing.assert_allclose(durations(first.down), SIZE / DEVICES[1][1])
        np.testing.assert_allclose(durations(first.train), 5.0)
        assert log.at_once == 3


def test_parquet_dates_and_servers_rows(tmp_path: Path) -> None:
    told = "server,0,round,1000,1012,,\nserver,1,round,1100,1111.5,,\nserver,0,aggregate,1012,1012.5,,\n"
    table = pd.read_csv(written(tmp_path / "a.csv", GOOD + told))
    for name in ("start", "end"):
        table[name] = pd.to_datetime(table[name], unit="s", utc=True)
    table.to_parquet(tmp_path / "a.parquet")
    table.assign(start=table["start"].astype(str), end=table["end"].astype(str)).to_csv(
        tmp_path / "dates.csv", index=False
    )
    for name in ("a.csv", "a.parquet", "dates.csv"):
        log = read_log(tmp_path / name, LogDefaults())
        np.testing.assert_allclose(log.rounds.end - log.rounds.start, [12, 11.5])
        np.testing.assert_allclose(spans(log.tasks)[1].max(), 211.25)


def test_what_is_the_same_in_all_rows_can_be_said_beside_the_log(tmp_path: Path) -> None:
    text = "".join(f"{line.rsplit(',', 2)[0]},7\n" for line in GOOD.splitlines())
    path = written(tmp_path / "a.csv", text, "client,round,what,start,end,retrans")
    log = read_log(path, LogDefaults(bytes=5e5, samples=40, epochs=2))
    assert set(log.tasks.up.amount) == {5e5}
    assert set(log.tasks.train.amount) == {40}
    assert set(log.tasks.epochs) == {2}
    assert log.notes == ("columns that are not used: retrans",)


def test_versions_that_overlap_are_of_an_asynchronous_server(tmp_path: Path) -> None:
    for apart in (30.0, 12.0):
        tasks = (
            task(str(one), number, 10.0 * one + apart * number, DEVICES[2])
            for number in range(5)
            for one in range(2)
        )
        assert read("".join(tasks), tmp_path).synchronous == (apart == 30.0)


def test_what_a_run_asks_before_its_rounds_is_left_out(tmp_path: Path) -> None:
    """TiFL's profiling is of no round."""
    tifl = {"kind": "tifl", "clients_per_round": 8, "tiers": 3}
    run(quiet_world(tifl, rounds=9) | {"learning": "off"}, tmp_path / "run")
    asked = [
        (event["device"], event["round"])
        for event in RunFolder(tmp_path / "run").events
        if event["kind"] == "task-start"
    ]
    often = Counter(device for device, number in asked if number is not None)
    assert len(asked) > often.total()
    log = read_log(tmp_path / "run", LogDefaults())
    # who was asked once is left out, too
    assert len(log.tasks.number) == sum(count for count in often.values() if count > 1)
    assert set(log.tasks.number.tolist()) <= set(range(9))


WRONG = {
    "no file": (None, "there is no log"),
    "a column is missing": ((HEAD.replace("round", "rond"), GOOD), "no column 'round'; it has .* (did you mean 'rond'"),
    "an unknown column is nearly a known one": ((HEAD.replace("bytes", "byte"), GOOD), "unknown column 'byte'.* (did"),
    "bytes are not said": ((HEAD.replace("bytes", "retrans"), GOOD), "no column 'bytes'; add one, or say with --bytes"),
    "no rows": ((HEAD, ""), "has no rows"),
    "a hole": ((HEAD, GOOD.replace(",1100.0,", ",,", 1)), "row 10 .*: start is empty"),
    "no client": ((HEAD, "," + GOOD.split(",", 1)[1]), "row 1 .*: client is empty"),
    "ends before it starts": ((HEAD, GOOD.replace("1000.0,1001.0", "1001.0,1000.0")), "row 1 .*: it ends 1 s before it starts"),
    "no such step": ((HEAD, GOOD.replace("train", "trian", 1)), "row 2 .*: what is 'trian'; .* (did you mean 'train'"),
    "no number": ((HEAD, GOOD.replace("1000.0", "soon", 1)), "row 1 .*: start is 'soon', which cannot be read"),
    "no whole round": ((HEAD, GOOD.replace(",1,down", ",1.5,down", 1)), "round is 1.5; allowed are whole numbers"),
    "nothing was sent": ((HEAD, GOOD.replace("1e+06", "0", 1)), "row 1 .*: bytes is 0; allowed is more than 0"),
    "milliseconds": ((HEAD, GOOD.replace("1000.0", "1000000000000", 1)), "row 1 .*: start is 1e\\+12; allowed are seconds"),
    "a step is missing": ((HEAD, "".join(GOOD.splitlines(True)[:1] + GOOD.splitlines(True)[2:])), "'up' .* without 'train'"),
    "two things at once": ((HEAD, GOOD + task("phone 0", 0, 1000.5, DEVICES[0])), "client 'phone 0' does two things at once"),
    "rounds run back": ((HEAD, GOOD + task("phone 0", 0, 1500.0, DEVICES[0])), "rounds are to grow with time"),
    "nothing but transfers": ((HEAD, "".join(line for line in GOOD.splitlines(True) if "train" not in line)), "no training"),
    "no table": ((HEAD, "1,2\n1,2,3,4,5,6,7,8,9\n"), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_logs(case: str, tmp_path: Path) -> None:
    content, message = WRONG[case]
    path = tmp_path / "log.csv"
    if content is not None:
        written(path, content[1], content[0])
    with pytest.raises(DataError, match=message.replace("(did", r"\(did")) as caught:
        read_log(path, LogDefaults())
    assert str(path) in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_client_with_one_task_is_left_out(tmp_path: Path) -> None:
    log = read(GOOD + task("tablet", 1, 1100.0, DEVICES[0]), tmp_path)
    assert "left out: 1 client with one task" in log.notes[0]
    assert log.clients == ("phone 0", "phone 1", "phone 2")


def test_several_transfers_of_a_client_at_once_are_read(tmp_path: Path) -> None:
    """A download in two pieces at once, and an upload that goes on while the next round's
    download does.
    """
    first = "a,0,down,0,2,5,\na,0,down,1,3,7,\na,0,train,3,5,,10\na,0,up,5,9,4,\n"
    text = first + "a,1,down,6,8,4,\na,1,train,9,11,,10\na,1,up,11,12,4,\n"
    tasks = read(text, tmp_path).tasks
    assert tasks.number.tolist() == [0, 1]
    assert tasks.down.amount.tolist() == [12, 4]
    assert (tasks.down.end.tolist(), tasks.up.start.tolist()) == ([3, 8], [5, 11])


def test_logs_of_nvflares_clients(tmp_path: Path) -> None:
    """Two sites and three rounds: 2 s down, 10 s of training, 4 s up; both ways in which NVFlare
    has written sizes.
    """

    def line(second: int, text: str, who: str = "Communicator") -> str:
        return f"2024-03-01 10:{second // 60:02}:{second % 60:02},500 - {who} - INFO - {text}\n"

    old = "Received from demo server  (4000 Bytes). getTask: train time: 2.0 seconds"
    new = (
        "Received from demo server. getTask: train size: 3.9KB (4000 Bytes) time: 2.000000 seconds"
    )
    for site in (1, 2):
        text = ""
        for number in range(3):
            text += line(30 * number + 2, old if number else new) + line(
                5, "[identity=site-1]: invoking", "ClientRunner"
            )
            text += line(
                30 * number + 16, "SubmitUpdate size: 3.9KB (4000 Bytes). time: 4.0 seconds"
            )
        (tmp_path / f"site-{site}").mkdir()
        (tmp_path / f"site-{site}" / "log.txt").write_text(text)
    log = read_log(tmp_path, LogDefaults(samples=100))
    assert log.clients == ("site-1", "site-2")
    assert len(log.tasks.number) == 6
    for steps, seconds in ((log.tasks.down, 2.0), (log.tasks.train, 10.0), (log.tasks.up, 4.0)):
        assert durations(steps) == pytest.approx([seconds] * 6)
    with pytest.raises(DataError, match="logs no samples"):
        read_log(tmp_path, LogDefaults())
    (tmp_path / "server.log").write_text(
        "INFO :      [ROUND 1]\nINFO :      aggregate_fit: received 2 results\n"
    )
    with pytest.raises(DataError, match="what Flower's server says"):
        read_log(tmp_path / "server.log", LogDefaults())


def appfl(folder: Path, asynchronous: bool) -> None:
    """The logs of a server and two clients, four rounds of two epochs: 1 s or 2 s down, 4 s or 6
    s an epoch, 3 s up.
    """

    def line(second: float, who: str, text: str, look: str = "appfl: \x1b[1m[") -> str:
        return f"{look}2025-01-19 04:{int(second) // 60:02}:{second % 60:06.3f} {who}]: {text}".replace(
            ".", ",", 1
        )

    titles = " ".join(
        f"{name:>10}" for name in ("Round", "Epoch", "Pre Val?", "Time", "Train Loss", "Val Loss")
    )
    server, ends = ["Starting the server"], {"Client1": [0.0], "Client2": [0.0]}
    logs = {name: [line(0, name, "Logging to x.txt"), line(0, name, titles)] for name in ends}
    for number in range(4):
        for place, (name, at) in enumerate(ends.items(), 1):
            got = (at[-1] if asynchronous else max(end[number] for end in ends.values())) + place
            logs[name].append(
                line(got, name, f"{number:>10} {0:>10} {'Y':>10} {'':>10} {'':>10} 0.5")
            )
            for epoch in (1, 2):
                took = 2 + 2 * place
                row = f"{number:>10} {epoch:>10} {'N':>10} {took:10.4f} 0.1 0.5"
                logs[name].append(line(got + epoch * took, name, row, "["))
            at.append(got + 2 * took + 3)
            server.append(
                line(
                    at[-1], "INFO server", f"Received UpdateGlobalModel request from client {name}"
                )
            )
    for name, lines in {**logs, "Server": server}.items():
        (folder / f"result_{name}_2025.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_logs_of_appfl(asynchronous: bool, tmp_path: Path) -> None:
    appfl(tmp_path, asynchronous)
    log = read_log(tmp_path, LogDefaults(bytes=8e6, samples=100))
    assert log.clients == ("Client1", "Client2")
    assert log.synchronous != asynchronous
    assert sorted(log.tasks.number) == [1, 1, 2, 2, 3, 3]
    assert set(log.tasks.epochs) == {2}
    for steps, seconds in (
        (log.tasks.down, (1, 2)),
        (log.tasks.train, (8, 12)),
        (log.tasks.up, (3, 3)),
    ):
        assert durations(steps) == pytest.approx(np.array(seconds)[log.tasks.client])
    fitted = fit(log.tasks, 2).world
    assert fitted.down == pytest.approx([8e6, 4e6])
    assert set(fitted.server.values()) == {math.inf}
    with pytest.raises(DataError, match=r"logs no bytes; .* --bytes"):
        read_log(tmp_path, LogDefaults(samples=100))
    server = tmp_path / "result_Server_2025.txt"
    server.write_text(server.read_text().replace("client Client2", "client 12e7104d"))
    with pytest.raises(
        DataError,
        match=r"updates of 'Client1, 12e7104d'.* trainings of 'Client1, Client2'.*client_id",
    ):
        read_log(tmp_path, LogDefaults(bytes=8e6, samples=100))


def fitted_to(
    text: str, folder: Path, latency: float | None = None, protocol: Tcp | None = None
) -> Fitted:
    log = read(text, folder)
    return fit(log.tasks, len(log.clients), latency, protocol)


def test_speeds_and_links_without_noise_and_a_row_that_is_odd_moves_nothing(tmp_path: Path) -> None:
    slow = task("phone 0", 9, 1900.0, (2.0, 1e5, 1e4))
    for text in (rounds(9) + slow, rounds(4)):
        found = fitted_to(text, tmp_path)
        np.testing.assert_allclose(found.world.speed, SPEED)
        np.testing.assert_allclose(found.world.down, DOWN)
        assert found.world.jitter == 0
    np.testing.assert_allclose(found.world.up, UP)
    assert found.world.server == {"down": math.inf, "up": math.inf}
    assert not found.latency_is_known
    assert np.isnan(found.overhead).all()


def test_sizes_that_differ_tell_latency_from_rate(tmp_path: Path) -> None:
    for latency in (None, 0.2):
        found = fitted_to(rounds(6, sizes=(1e5, 1e6, 3e6), wait=0.2), tmp_path, latency)
        assert found.latency_is_known
        np.testing.assert_allclose(found.world.latency, 0.2, rtol=1e-6)
        np.testing.assert_allclose(found.world.up, UP, rtol=1e-6)


def test_sizes_that_differ_tell_latency_from_slow_start(tmp_path: Path) -> None:
    """By TCP with 0.02 s of latency: after n round trips of 0.04 s, each twice the window
    before, at the link's rate.
    """
    text = ""
    for number, size in enumerate((1e6, 2e6, 4e6, 1e6, 2e6, 4e6)):
        for name, (speed, down, up) in enumerate(DEVICES):
            wire, begin, times = size * 1514 / 1448, 1000.0 + 100 * number, list[float]()
            for rate in (down, up):
                trips = math.ceil(math.log2(rate * 0.04 / 15140)) if rate * 0.04 > 15140 else 0
                times.append(0.02 + trips * 0.04 + (wire - 15140 * (2**trips - 1)) / rate)
            text += task(
                str(name), number, begin, (speed, size / times[0], size / times[1]), size=size
            )
    links = fitted_to(text, tmp_path, protocol=Tcp()).world
    np.testing.assert_allclose(links.latency, 0.02, rtol=1e-6)
    np.testing.assert_allclose(links.down, DOWN, rtol=1e-6)
    np.testing.assert_allclose(links.up, UP, rtol=1e-6)


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
    np.testing.assert_allclose(found.world.speed, SPEED, rtol=0.03)  # 0.2 / sqrt(300) = 0.012


def test_a_fixed_part_of_trainings(tmp_path: Path) -> None:
    text = ""
    for number, samples in enumerate((50, 100, 200, 400)):
        lines = task(
            "a",
            number,
            100.0 * number,
            (samples / (3.0 + samples / 20.0), 1e6, 1e6),
            samples=samples,
        )
        text += lines + task("b", number, 100.0 * number, (20.0, 1e6, 1e6))
    found = fitted_to(text, tmp_path)
    assert found.overhead[0] == pytest.approx(3.0)
    assert math.isnan(found.overhead[1])


def test_presence_of_those_who_miss_a_round(tmp_path: Path) -> None:
    lines = [task(str(one), number, 100.0 * number, DEVICES[0]) for number in range(10) for one in range(5)
             if not (one == 1 and number in (4, 5)) and not (one == 3 and number == 8)]  # fmt: skip
    there = estimate_presence(read("".join(lines), tmp_path))
    assert there is not None
    whole = 905.0  # from the first round to the end of the last
    assert there.mean_on == pytest.approx((5 * whole - 300.0) / 2)  # two leave
    assert there.mean_off == pytest.approx(150.0)  # and come back, after 200 s and 100 s
    np.testing.assert_allclose(there.share, [1, 1 - 200 / whole, 1, 1 - 100 / whole, 1])


def test_presence_that_the_log_says_and_that_cohorts_do_not_tell(tmp_path: Path) -> None:
    def of(lines: str) -> Presence | None:
        return estimate_presence(read(lines, tmp_path))

    on = (
        "phone 0,,on,1000,1040",
        "phone 0,,on,1100,1211.25",
        "phone 1,,on,1000,1211.25",
        "phone 2,,on,1000,1211.25",
    )
    there = of(rounds(3) + "".join(f"{line},,\n" for line in on))
    assert there is not None
    assert there.mean_off == pytest.approx(60.0)
    assert there.share[0] == pytest.approx(1 - 60 / 211.25)
    assert of(rounds(3)) is None  # nobody is ever away
    asked = (
        task(str(one), number, 100.0 * number, DEVICES[0])
        for number in range(9)
        for one in range(6)
        if (one + number) % 3
    )
    assert of("".join(asked)) is None  # two of three are asked


def test_many_clients_of_one_rate_share_a_link(tmp_path: Path) -> None:
    """Ten at once get 100 kB/s each: three of them alone would get a third of the whole, not a
    tenth.
    """
    found = fitted_to(rounds(4, [(20.0, 1e5, 1e5)] * 10), tmp_path)
    assert found.world.server == pytest.approx({"down": 1e6, "up": 1e6})
    assert found.world.down.tolist() == pytest.approx([1e6] * 10)
    assert "taken for one link that they share, of 8 Mbit/s" in found.notes[0]


def test_tiny_messages_tell_no_rate_and_nothing_is_infinite(tmp_path: Path) -> None:
    small = fitted_to(rounds(4, sizes=(1000.0,)), tmp_path)
    assert all("they tell latency, not the links' rates" in note for note in small.notes)
    only = fitted_to(
        "".join(line for line in rounds(4).splitlines(True) if ",down," not in line), tmp_path
    )
    assert only.world.down.tolist() == only.world.up.tolist()
    assert only.notes == ("nothing tells the links down: they are taken for those up",)
