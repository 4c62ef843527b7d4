"""Devices by name: the catalogue and its sources, kinds of the user's own, mixtures, and models
that do not fit.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import DataError
from fedsim.common.streams import Streams
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.running.scenario import load
from fedsim.testing import assert_same_run, assert_sound, go_on, run, run_until
from fedsim.toolbox.worlds.capacities import FedScaleCapacity, read_capacities
from fedsim.world.device_kinds import DeviceKind, catalogue, figures, find_kind

ZERO = {"like": "raspberry-pi-zero-2w", "memory": "1 MB"}


def world(**population: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seed": 5,
        "learning": "off",
        "data": {"source": "digits"},
        "stop": {"rounds": 4},
    }
    found |= {"model": {"kind": "mlp", "hidden": [200]}, "population": {"devices": 12} | population}
    found |= {"network": {"kind": "star", "server": {"up": "20 Mbit/s"}}}
    return found | {"strategy": {"kind": "fedavg", "clients_per_round": 5}}


def built(device_links: dict[str, str] | None = None, **population: Any) -> Run:
    sections = world(**population)
    sections["network"]["device"] = device_links or {}
    return Run(fedsim.Scenario(**sections), Simulation())


def test_every_figure_of_the_catalogue_has_a_source_and_a_date() -> None:
    assert len(catalogue()) >= 12
    for name, title in catalogue().items():
        assert len(title) > 20
        known = figures(name, "kind")
        only = {"epoch", "gpu", "arm", "receive_byte", "send_byte", "tail", "tail_lasts"}
        own = (
            {"gpu"}
            if "CUDA" in title
            else {"arm"}
            if "Raspberry" in title
            else only - {"epoch", "gpu", "arm"}
        )
        assert known.keys() == DeviceKind.model_fields.keys() - only | (
            own if "phone" in name or len(own) == 1 else set()
        )
        for figure in known.values():
            assert len(figure.source) > 10
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", figure.date)
        found = find_kind(name, {}, "kind")
        assert 1e9 < found.flops * found.flops_share < 1e13
        assert 1e9 < found.bandwidth * found.bandwidth_share < 1e12
        assert found.idle < found.idle + found.compute < 1000


def test_a_mixture_has_its_shares_and_each_its_own_link() -> None:
    mixture = {"kind": "choice", "values": ["phone-low", "laptop"], "shares": [0.75, 0.25]}
    run = built(devices=2000, samples={"low": 5, "high": 9}, device=mixture)
    slow = run.network.access["down"] == find_kind("phone-low", {}, "").down
    assert slow.mean() == pytest.approx(0.75, abs=0.04)
    assert run.network.latencies[slow] == pytest.approx(0.05)
    assert (run.population.speed[slow] < run.population.speed[~slow].min()).all()


def test_what_the_network_says_goes_before_the_kinds_links() -> None:
    run = built({"up": "1 Mbit/s", "latency": "7 s"}, device="laptop")
    assert run.network.access["up"].item(0) == 125e3
    assert run.network.latencies.tolist() == [7.0] * 12


def test_by_list_and_by_file(tmp_path: Path) -> None:
    names = ["laptop", "phone-mid", "mine"] * 4
    (tmp_path / "d.csv").write_text("\n".join(["model", *names]))
    mine = {"mine": {"like": "laptop", "flops": "1 TFLOP/s", "flops_share": 0.9}}
    listed = built(device=names, kinds=mine).population.speed
    filed = built(
        device={"file": str(tmp_path / "d.csv"), "column": "model"}, kinds=mine
    ).population.speed
    assert listed.tolist() == filed.tolist()
    assert listed[2] > listed[0] > listed[1]


def test_a_kind_from_nothing_and_what_is_written_back(tmp_path: Path) -> None:
    mine = {"flops": "1 GFLOP/s", "bandwidth": "1 GB/s", "memory": "1 GB"}
    scenario = fedsim.Scenario(
        **world(device="mine", kinds={"mine": mine, "other": {"like": "laptop", "idle": "1 W"}})
    )
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    again = load(tmp_path / "s.toml")
    assert again.population.kinds == scenario.population.kinds
    assert again.population.kinds["other"].idle == 1
    assert again.to_toml() == scenario.to_toml()


def test_slow_ones_of_a_kind_are_slower_and_the_mean_is_known() -> None:
    plain = built(device="laptop")
    slowed = built(device="laptop", stragglers={"share": 0.5, "factor": 0.25})
    assert sorted(slowed.population.speed / plain.population.speed) == [0.25] * 6 + [1.0] * 6
    assert slowed.population.mean_epoch_s("unslowed") == pytest.approx(
        plain.population.mean_epoch_s("all")
    )
    assert slowed.population.mean_epoch_s("all") == pytest.approx(
        slowed.population.epochs_s().mean()
    )


class TestMemory:
    """Half of the devices have no room for the model: they receive it, begin, and fail."""

    SMALL = ("laptop", "small") * 6

    def sections(self, **strategy: Any) -> dict[str, Any]:
        sections = world(
            device=list(self.SMALL), kinds={"small": ZERO | {"memory": "250 kB"}}, jitter=0.1
        )
        return sections | {"strategy": sections["strategy"] | strategy}

    def test_their_tasks_end_so_after_a_forward_pass_and_their_bytes_are_wasted(
        self, tmp_path: Path
    ) -> None:
        summary = run(self.sections(), tmp_path / "r")
        folder = RunFolder(tmp_path / "r")
        ends = {
            (event["device"] % 2, event["outcome"])
            for event in folder.events
            if event["kind"] == "task-end"
        }
        assert ends == {(0, "done"), (1, "memory")}
        steps = [
            event
            for event in folder.events
            if event["kind"] == "step-end" and event["outcome"] == "memory"
        ]
        assert {(event["step"], event["data"]["epochs"]) for event in steps} == {("train", 0)}
        failed = {event["task"] for event in steps}
        moved = sum(row["delivered"] for row in folder.transfers if row["task"] in failed)
        assert folder.summary["bytes"]["wasted"] == pytest.approx(moved)
        assert moved > 0
        assert all(row["valid"] + row["slow"] == row["selected"] == 5 for row in folder.rounds)
        rooflines = Run(fedsim.Scenario(**self.sections()), Simulation()).population.rooflines
        assert rooflines is not None
        # the last
        begun = {
            event["task"]: event["time"] for event in folder.events if event["kind"] == "step-start"
        }
        took = [event["time"] - begun[event["task"]] for event in steps]
        assert np.array(took) == pytest.approx(rooflines.testing_s(1, 10), abs=2**-29)
        assert_sound(tmp_path / "r")
        for place in (17, summary["events"] // 2):
            assert run_until(self.sections(), tmp_path / f"cut-{place}", place) == "interrupted"
            go_on(self.sections(), tmp_path / f"cut-{place}")
            assert_same_run(tmp_path / "r", tmp_path / f"cut-{place}")

    @pytest.mark.parametrize("kind", ["fedbuff", "fedasync"])
    def test_a_strategy_without_rounds_goes_on(self, tmp_path: Path, kind: str) -> None:
        sections = self.sections() | {
            "strategy": {"kind": kind, "concurrency": 6},
            "stop": {"rounds": 6},
        }
        del sections["network"]
        assert run(sections, tmp_path / "r")["rounds"] == 6
        assert_sound(tmp_path / "r")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("computation_ms_per_sample,dl_kbps\n1,2\n", "has no column 'ul_kbps'"),
        ("computation_ms_per_sample,dl_kbps,ul_kbps\n1,2,0\n", "row 1.*ul_kbps is '0'"),
    ],
)
def test_fedscale_s_units_and_what_it_refuses(tmp_path: Path, text: str, what: str) -> None:
    """A sample takes 3 x 50 ms to train."""
    path = tmp_path / "traces" / "fedscale_capacity_9242.csv"
    path.parent.mkdir()
    path.write_text(
        "client,computation_ms_per_sample,communication_kbps,dl_kbps,ul_kbps\n0,50,1,8000,800\n"
    )
    drawn = FedScaleCapacity().draw(Streams(1), 3, tmp_path)
    assert drawn.links is not None
    assert [drawn.speed.tolist(), *map(list, drawn.links)] == [
        pytest.approx([of] * 3) for of in (1000 / 150, 1e6, 1e5)
    ]
    path.write_text(text)
    with pytest.raises(DataError, match=what):
        FedScaleCapacity().draw(Streams(1), 3, tmp_path)


def test_the_published_table(data_folder: Path) -> None:
    assert read_capacities(data_folder / FedScaleCapacity().file).shape == (9242, 3)
    assert len(np.unique(FedScaleCapacity().draw(Streams(1), 5000, data_folder).speed)) > 50
