"""Networks between regions of clouds: against the measured table, by hand, and from the command
line's point of view.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import FedsimError
from fedsim.common.streams import Streams
from fedsim.lab.catalogue import about
from fedsim.lab.terminal import summary_lines
from fedsim.testing import assert_sound, quiet_world, run
from fedsim.toolbox.worlds.cables import Cables, City
from fedsim.toolbox.worlds.cloud_facts import cloud_facts
from fedsim.world.population_spec import PopulationSpec
from tests.calls import done

OF = ["aws:eu-west-1", "aws:sa-east-1", "gcp:europe-west1"]
NETWORK: dict[str, Any] = {"kind": "regions", "of": OF}


def test_rules_on_the_measured_pairs() -> None:
    """As far off as the docstring of ``RegionsSpec`` says; and the great circle from Dublin to
    Sao Paulo, 9,390 km.
    """
    facts = cloud_facts()
    for cloud, rows, mean, largest in (("aws", 42, 0.036, 0.222), ("gcp", 22, 0.023, 0.077)):
        into = [each for (_, other), each in facts.measured.items() if other.startswith(cloud)]
        errors = [
            abs(facts.rate_rules[cloud].rate(each.round_trip) / each.rate - 1) for each in into
        ]
        assert len(errors) == rows
        assert (sum(errors) / rows, max(errors)) == pytest.approx((mean, largest), abs=0.001)
        assert facts.rate_rules[cloud].fit[1:3] == pytest.approx((mean, largest), abs=0.001)
    for within, rows, mean, largest in ((True, 30, 0.038, 0.087), (False, 34, 0.058, 0.220)):
        pairs = [
            pair
            for pair in facts.measured
            if all(name.startswith("aws") for name in pair) == within
        ]
        trips = [
            abs(facts.estimate(*pair).round_trip / facts.measured[pair].round_trip - 1)
            for pair in pairs
        ]
        assert len(trips) == rows
        assert (sum(trips) / rows, max(trips)) == pytest.approx((mean, largest), abs=0.001)
    assert facts.great_circle_km("aws:eu-west-1", "aws:sa-east-1") == pytest.approx(9390, abs=10)
    assert facts.way_km("aws:eu-west-1", "aws:sa-east-1") == pytest.approx(4760 + 8147, abs=2)


def test_ways_follow_cables() -> None:
    """Frankfurt to Mumbai leads over Marseille, Suez and Djibouti, Tokyo to Mumbai over Singapore;
    within a part of the world a way is the great circle.
    """
    facts = cloud_facts()
    assert facts.great_circle_km("aws:eu-central-1", "gcp:asia-south1") == pytest.approx(
        6570, abs=30
    )
    assert facts.way_km("aws:eu-central-1", "gcp:asia-south1") == pytest.approx(
        797 + 2800 + 2310 + 3330, rel=0.01
    )
    for one, other in (("aws:eu-west-1", "gcp:europe-north1"), ("aws:us-east-1", "gcp:us-west1")):
        assert facts.way_km(one, other) == facts.great_circle_km(one, other)
    to_mumbai = facts.way_km("gcp:asia-northeast1", "gcp:asia-south1")
    stops = ("gcp:asia-northeast1", "aws:ap-southeast-1", "gcp:asia-south1")
    assert to_mumbai == pytest.approx(
        facts.great_circle_km(*stops[:2]) + facts.great_circle_km(*stops[1:]), rel=1e-3
    )
    moon = City("Tycho", "moon", 0.0, 0.0)
    assert Cables([], []).way_km(moon, facts.sites["aws:eu-west-1"]) == math.inf


def test_azure_has_the_window_of_linux() -> None:
    facts = cloud_facts()
    rate = facts.rate_rules["azure"].rate(0.05122) * 8 / 1e6
    assert rate == pytest.approx(450, rel=0.051)
    (line,) = facts.outside_of_rules([("gcp:europe-west1", "azure:eastasia")])
    assert line.startswith("gcp:europe-west1 to azure:eastasia: its round trip is 2")
    assert facts.rules_for([("gcp:us-west1", "azure:westus")])[0] == (
        "rates into azure follow a rule for round trips of 51 ms: 5 % off on the one pair that "
        "was measured"
    )


def test_several_connections_lie_outside_of_what_was_measured() -> None:
    single = fedsim.Scenario(network=NETWORK).network.outside_of_rules()
    several = fedsim.Scenario(network=NETWORK | {"connections": 4}).network.outside_of_rules()
    assert several[:-1] == single
    assert several[-1].startswith("4 connections of a pair: only single ones were measured")


def test_the_window_is_the_receivers() -> None:
    """What was measured into GCP is three times as fast as into AWS at the same round trip;
    rules say so of all pairs.
    """
    facts = cloud_facts()
    into, out_of = (
        facts.connection("aws:us-east-1", "gcp:us-west1"),
        facts.connection("gcp:us-west1", "aws:us-east-1"),
    )
    assert into.round_trip == out_of.round_trip
    assert into.rate / out_of.rate == pytest.approx(3.5, abs=0.3)
    # measured the other way alone
    back = facts.connection("aws:ap-northeast-1", "gcp:asia-southeast1")
    assert back.round_trip == facts.measured["gcp:asia-southeast1", "aws:ap-northeast-1"].round_trip
    assert back.rate == facts.rate_rules["gcp"].rate(back.round_trip)


def test_a_rule_says_its_domain_and_what_lies_outside(tmp_path: Path) -> None:
    facts = cloud_facts()
    near, far = ("aws:us-east-1", "gcp:us-east4"), ("aws:eu-west-1", "aws:af-south-1")
    assert (
        facts.outside_of_rules(
            [("aws:eu-west-1", "aws:sa-east-1"), ("aws:eu-west-2", "aws:sa-east-1")]
        )
        == []
    )
    (of_near,) = facts.outside_of_rules([near])
    assert (
        of_near
        == "aws:us-east-1 to gcp:us-east4: its round trip is 7 ms, its way is 0 km, no pair of "
        "north-america was measured"
    )
    assert facts.outside_of_rules([far]) == [
        "aws:eu-west-1 to aws:af-south-1: no pair of africa and europe was measured"
    ]
    assert facts.rules_for([far]) == [
        "rates into aws follow a rule for round trips of 12 to 312 ms: 4 % off on the mean of "
        "its 42 pairs, 22 % at most",
        "round trips within aws follow a rule for 1,088 to 24,177 km: 4 % off on the mean of "
        "its 30 pairs, 9 % at most",
    ]
    sections = quiet_world({"kind": "fedavg", "clients_per_round": 2}, rounds=1)
    sections |= {"learning": "off", "network": {"kind": "regions", "of": list(far)}}
    summary = run(sections, tmp_path / "run")
    assert summary["outside_of_rules"] == [
        " to ".join(way) + ": no pair of africa and europe was measured" for way in (far, far[::-1])
    ]
    assert "outside of what a rule was fitted to: aws:eu-west-1" in "\n".join(
        summary_lines(summary)
    )
    assert_sound(tmp_path / "run")


def test_check_prints_the_rules_and_what_lies_outside(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    board = {"devices": 30, "device": "raspberry-pi-4"}
    network = {"kind": "star", "device": {"up": "1 MB/s"}, "protocol": "tcp"}
    sections = {
        "learning": "off",
        "population": board,
        "network": network,
        "strategy": {"clients_per_round": 20},
    }
    scenario.write_text(fedsim.Scenario(**sections).to_toml(), encoding="utf-8")
    text = done("check", scenario, "--no-trial")
    for line in (
        "shares of TCP's flows (weight_spread) follow a rule for 3 to 12 clients at a time",
        "times of training on ARM cores follow a rule for batches of 16 images",
        "outside of what a rule was fitted to: 20 devices send at a time",
        "outside of what a rule was fitted to: times of boards with ARM cores",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("connections", "up", "seconds"),
    [(1, "inf B/s", 8e8 / 37.2e6), (4, "inf B/s", 2e8 / 37.2e6), (4, "10 MB/s", 10.0)],
)
def test_a_measured_pair(connections: int, up: str, seconds: float) -> None:
    """100 MB from Ireland to Sao Paulo: 37.2 Mbit/s a connection, up to the device's own link,
    and half of 176.813 ms.
    """
    world = fedsim.build_world(
        {"devices": 6}, NETWORK | {"connections": connections, "device": {"up": up}}
    )
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
    assert (
        world.rate("device 0 -> device 2")
        == facts.estimate(OF[0], OF[2]).rate
        == facts.connection(OF[0], OF[2]).rate
    )


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "pairs.csv"
    table.write_text("from,to,rtt_ms,mbit_s\nhome,lab,20,80\nlab,lab,1,800\n")
    network = {"kind": "regions", "of": ["home", "lab"], "server_in": "lab", "file": str(table)}
    world = fedsim.build_world({"devices": 4}, network)
    for source, destination, seconds in (
        (0, 1, 10.01),
        (1, 0, 10.01),
        (1, 3, 1.0005),
        ("server", 0, 10.01),
    ):
        begin = world.now
        world.env.run(until=world.send(source, destination, "100 MB"))
        assert world.now - begin == pytest.approx(seconds, abs=1e-6)
    for text, says in (
        ("from,to,rtt_ms\n", "no column 'mbit_s'"),
        ("from,to,rtt_ms,mbit_s\na,b,1,0\n", "mbit_s is '0'"),
    ):
        table.write_text(text)
        with pytest.raises(FedsimError, match=says):
            fedsim.build_world({}, {"kind": "regions", "of": ["home"], "file": str(table)})
    table.write_text("from,to,rtt_ms,mbit_s\nhome,lab,20,80\n")
    with pytest.raises(FedsimError, match="has no row from 'home' to 'bar', nor back"):
        fedsim.build_world({}, {"kind": "regions", "of": ["home", "bar"], "file": str(table)})


@pytest.mark.parametrize(
    "strategy", [{"kind": "fedavg", "clients_per_round": 4}, {"kind": "diloco"}]
)
def test_runs_are_sound(strategy: dict[str, Any], tmp_path: Path) -> None:
    sections = quiet_world(strategy, rounds=2)
    sections["population"] |= {"devices": 6}
    sections["network"] = NETWORK | {"device": {"up": "100 Mbit/s", "latency": "5 ms"}}
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run", executor="inline")
    assert_sound(tmp_path / "run")


def test_hospitals_have_the_times_that_were_measured() -> None:
    """Means of many draws against the table's: of a patient's training, of both ways of a
    transfer, and of the noise.
    """
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
    said = PopulationSpec.model_validate(
        {"capacity": "hospitals-fets", "jitter": 0.1, "devices": 3}
    )
    assert said.jitters(streams, None).tolist() == [0.1] * 3
    with pytest.raises(
        FedsimError,
        match=r"capacity\.kind is 'hospitals-fetz'; allowed are fedscale, hospitals-fets",
    ):
        fedsim.Scenario(population="hospitals-fetz")


def test_a_region_is_described_with_sources() -> None:
    lines, source = (
        about("aws:eu-west-1"),
        "github.com/doitintl/intercloud-throughput, Apache-2.0 (2022-02-17)",
    )
    assert f'  aws:sa-east-1 = "176.8 ms, 37.2 Mbit/s"  # {source}' in lines
    (ruled,) = [line for line in lines if "gcp:us-central1" in line]
    assert "estimate" in ruled
