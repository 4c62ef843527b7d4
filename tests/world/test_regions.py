"""Networks between regions of clouds: against the measured table, by hand, and from the command line's point of view."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.errors import FedsimError
from fedsim.lab.catalogue import about
from fedsim.streams import Streams
from fedsim.testing import assert_sound, quiet_world
from fedsim.toolbox.worlds.regions import cloud_facts
from fedsim.world.population import PopulationSpec

OF = ["aws:eu-west-1", "aws:sa-east-1", "gcp:europe-west1"]
NETWORK: dict[str, Any] = {"kind": "regions", "of": OF}


def test_rules_on_the_measured_pairs() -> None:
    """As far off as the docstring of ``RegionsSpec`` says; and the great circle from Dublin to Sao Paulo, 9,390 km."""
    facts = cloud_facts()
    windows = [facts.window / (each.round_trip * each.rate) - 1 for each in facts.measured.values()]
    trips = [facts.ruled(*pair).round_trip / each.round_trip - 1 for pair, each in facts.measured.items()]
    assert facts.window == pytest.approx(0.83e6, rel=0.01)
    assert (sum(map(abs, windows)) / 30, max(map(abs, windows))) == pytest.approx((0.017, 0.053), abs=0.001)
    assert (sum(map(abs, trips)) / 30, max(map(abs, trips))) == pytest.approx((0.049, 0.108), abs=0.001)
    assert facts.great_circle_km("aws:eu-west-1", "aws:sa-east-1") == pytest.approx(9390, abs=10)
    assert facts.way_km("aws:eu-west-1", "aws:sa-east-1") == pytest.approx(4760 + 8147, abs=2)


@pytest.mark.parametrize(
    ("connections", "up", "seconds"), [(1, "inf B/s", 8e8 / 37.2e6), (4, "inf B/s", 2e8 / 37.2e6), (4, "10 MB/s", 10.0)]
)
def test_a_measured_pair(connections: int, up: str, seconds: float) -> None:
    """100 MB from Ireland to Sao Paulo: 37.2 Mbit/s a connection, up to the device's own link, and half of 176.813 ms."""
    world = fedsim.build_world({"devices": 6}, NETWORK | {"connections": connections, "device": {"up": up}})
    world.env.run(until=world.send(0, 1, "100 MB"))
    assert world.now == pytest.approx(0.176813 / 2 + seconds, abs=1e-4)


def test_pairs_do_not_share_and_a_region_has_no_limit_but_own_links() -> None:
    world = fedsim.build_world({"devices": 6}, NETWORK | {"device": {"latency": "1 ms"}})
    facts = cloud_facts()
    for source, destination in ((0, 1), (3, 1), ("server", 4)):
        world.send(source, destination, 37.2e6 / 8)
    world.env.run(until=world.send(0, 3, "1 GB"))
    assert world.now == pytest.approx(0.002, abs=1e-6)
    world.env.run()
    assert world.now == pytest.approx(1.0 + 0.176813 / 2 + 0.002, abs=1e-4)
    assert world.rate("device 0 -> device 2") == facts.ruled(OF[0], OF[2]).rate == facts.connection(OF[2], OF[0]).rate


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("from,to,rtt_ms,mbit_s\nhome,lab,20,80\nlab,lab,1,800\n")
    network = {"kind": "regions", "of": ["home", "lab"], "server_in": "lab", "file": str(table)}
    world = fedsim.build_world({"devices": 4}, network)
    for source, destination, seconds in ((0, 1, 10.01), (1, 0, 10.01), (1, 3, 1.0005), ("server", 0, 10.01)):
        begin = world.now
        world.env.run(until=world.send(source, destination, "100 MB"))
        assert world.now - begin == pytest.approx(seconds, abs=1e-6)
    for text, says in (("from,to,rtt_ms\n", "no column 'mbit_s'"), ("from,to,rtt_ms,mbit_s\na,b,1,0\n", "mbit_s is '0'")):
        table.write_text(text)
        with pytest.raises(FedsimError, match=says):
            fedsim.build_world({}, {"kind": "regions", "of": ["home"], "file": str(table)})
    table.write_text("from,to,rtt_ms,mbit_s\nhome,lab,20,80\n")
    with pytest.raises(FedsimError, match="has no row from 'home' to 'bar', nor back"):
        fedsim.build_world({}, {"kind": "regions", "of": ["home", "bar"], "file": str(table)})


@pytest.mark.parametrize("strategy", [{"kind": "fedavg", "clients_per_round": 4}, {"kind": "diloco"}])
def test_runs_are_sound(strategy: dict[str, Any], tmp_path: Path) -> None:
    sections = quiet_world(strategy, rounds=2)
    sections["population"] |= {"devices": 6}
    sections["network"] = NETWORK | {"device": {"up": "100 Mbit/s", "latency": "5 ms"}}
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run", executor="inline")
    assert_sound(tmp_path / "run")


def test_hospitals_have_the_times_that_were_measured() -> None:
    """Means of many draws against the table's: of a patient's training, of both ways of a transfer, and of the noise."""
    population = PopulationSpec.model_validate({"capacity": "hospitals-fets", "devices": 20_000})
    streams = Streams(1)
    capacity, jitters = population.capacities(streams, None), population.jitters(streams, None)
    assert capacity.links is not None
    assert np.mean(1 / capacity.speed) == pytest.approx(5.6215, rel=0.02)
    assert np.mean(capacity.links[2]) == pytest.approx((103.396 + 159.485) / 2, rel=0.02)
    slow = np.isclose(1 / capacity.speed, 20.6619)
    assert slow.mean() == pytest.approx(1 / 21, rel=0.1)
    np.testing.assert_allclose(jitters[slow], 6.0854 / 20.6619, rtol=1e-6)
    assert fedsim.Scenario(population="hospitals-fets").population.capacity.kind == "hospitals-fets"  # type: ignore[union-attr]
    said = PopulationSpec.model_validate({"capacity": "hospitals-fets", "jitter": 0.1, "devices": 3})
    assert said.jitters(streams, None).tolist() == [0.1] * 3
    with pytest.raises(FedsimError, match=r"capacity\.kind is 'hospitals-fetz'; allowed are fedscale, hospitals-fets"):
        fedsim.Scenario(population="hospitals-fetz")


def test_a_region_is_described_with_sources() -> None:
    lines, source = about("aws:eu-west-1"), "github.com/doitintl/intercloud-throughput, Apache-2.0 (2022-02-17)"
    assert f'  aws:sa-east-1 = "176.8 ms, 37.2 Mbit/s"  # {source}' in lines
    (ruled,) = [line for line in lines if "gcp:us-central1" in line]
    assert "estimate" in ruled
