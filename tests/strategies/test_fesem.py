"""FeSEM against known answers, through whole simulated runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.testing import StrategyContract
from fedsim.toolbox.strategies.fesem import FeSEMParams
from tests.strategies.clustered import PAIRED, STARTED, Sections, of_kind, opposite_groups, played, ran, weights, world


def fesem(groups: int, clients: int, **others: Any) -> Sections:
    return {"kind": "fesem", "groups": groups, "clients_per_round": clients, "local_epochs": 2} | others


def asked(run: Any) -> list[tuple[int, int, int]]:
    """(round, device, group) of every task."""
    return [(event["round"], event["device"], event["group"]) for event in of_kind(run, "task-start")]


def test_a_client_joins_the_model_nearest_to_what_it_sent_last() -> None:
    """In a round after all have sent something: by the definition, from what the server holds."""
    sections = world(PAIRED, 10, fesem(3, 10), 4)
    before, _ = played(sections)
    _, records = played(sections | {"stop": {"rounds": 5}})
    centers, last = weights(before), weights(before, before.strategy.state["last"])
    expected = [int(np.argmin([np.linalg.norm(own.astype(np.float64) - center) for center in centers])) for own in last]
    found = {record.fields["device"]: record.fields["group"] for record in records if record.kind == "task-start"}
    assert [found[device] for device in range(10)] == expected


@pytest.mark.parametrize("kind", ["fesem", "fesem-mig"])
def test_groups_are_found_without_a_look_at_the_data(tmp_path: Path, kind: str) -> None:
    """Whatever happens to the data at the begin of a round, its groups are those of what was sent before."""
    drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [5]}}
    sections = world(PAIRED, 20, fesem(3, 8) | {"kind": kind}, 7)
    still = ran(sections, tmp_path / "still")
    shifted = ran(sections | {"drift": drift}, tmp_path / "shifted")
    assert len(of_kind(shifted, "shift")) == 20

    def until(rounds: int, run: Any) -> list[tuple[int, int, int]]:
        return [entry for entry in asked(run) if entry[0] <= rounds]

    assert until(5, still) == until(5, shifted)
    assert still.summary["models_sha256"] != shifted.summary["models_sha256"]
    assert not of_kind(shifted, "shift-test")


class TestOneGroup:
    def test_from_its_second_round_on_it_is_an_unweighted_fedavg(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Devices of equal size, so FedAvg's weights are equal too; its one model is a draw of its own."""
        data = opposite_groups(tmp_path, [14] * 5)
        monkeypatch.setattr(FeSEMParams, "sweeps", False)
        sections = world(data, 5, fesem(1, 3), 6, training={"batch_size": 4})
        ours, _ = played(sections)
        start = weights(ours, [ours.learner.initial(1)])[0].tolist()
        fedavg = {"kind": STARTED, "clients_per_round": 3, "local_epochs": 2, "start": start}
        theirs, _ = played(sections | {"strategy": fedavg})
        assert weights(ours)[0].tobytes() == weights(theirs, [theirs.strategy.state["model"]])[0].tobytes()


class TestPoints:
    """The k-means form: clients are points, groups are their means."""

    def sections(self, tmp_path: Path, clients: int, rounds: int) -> Sections:
        strategy = fesem(2, clients, **{"as": "paper"})
        return world(opposite_groups(tmp_path / "data", [14] * 8), 8, strategy, rounds, training={"batch_size": 4})

    def test_groups_are_the_means_of_the_last_models_of_all_members(self, tmp_path: Path) -> None:
        run, _ = played(self.sections(tmp_path, 4, 5))
        last, groups = weights(run, run.strategy.state["last"]), run.strategy.state["group"]
        assert sorted({*groups}) == [0, 1]
        for group, model in enumerate(weights(run)):
            members = [own.astype(np.float64) for own, found in zip(last, groups, strict=True) if found == group]
            assert model == pytest.approx(np.mean(members, axis=0), abs=1e-6)

    def test_clients_of_opposite_labels_part(self, tmp_path: Path) -> None:
        groups = played(self.sections(tmp_path, 8, 3))[0].strategy.state["group"]
        assert groups in ([0, 1] * 4, [1, 0] * 4)

    def test_it_goes_on_as_if_it_had_not_been_stopped(self, tmp_path: Path) -> None:
        contract = StrategyContract()
        contract.strategy = fesem(2, 6, **{"as": "paper"})
        contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
