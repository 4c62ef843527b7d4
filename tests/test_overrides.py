"""How files extend files, and variants alter the base."""

from pathlib import Path

import pytest

import fedsim
from fedsim.errors import ScenarioError
from fedsim.overrides import changed, first_difference, read_toml, spread_out

BASE = {
    "training": {"lr": 0.1, "batch_size": 8},
    "strategy": {"kind": "fedprox", "mu": 0.5, "clients_per_round": 7, "deadline": "9 s"},
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}, "source": "digits"},
}


def test_dotted_keys_inner_tables_and_whole_tables_say_the_same() -> None:
    ways = (
        {"strategy.kind": "fedavg", "training.lr": 0.2},
        {"strategy": {"kind": "fedavg"}, "training": {"lr": 0.2}},
        {"strategy": {"kind": "fedavg"}, "training.lr": 0.2},
    )
    first, *others = [changed(BASE, spread_out(way)) for way in ways]
    assert all(other == first for other in others)
    assert first["training"] == {"lr": 0.2, "batch_size": 8}
    assert BASE["training"] == {"lr": 0.1, "batch_size": 8}


def test_another_strategy_keeps_the_common_terms_and_only_those() -> None:
    def strategy(of: dict[str, object], change: dict[str, object]) -> object:
        return changed({"strategy": of}, {"strategy": change})["strategy"]

    prox = BASE["strategy"]
    assert strategy(prox, {"kind": "fedbuff", "buffer": 3}) == {"kind": "fedbuff", "buffer": 3}  # no cohort, deadline or mu
    assert strategy(prox, {"kind": "flexcfl"}) == {"kind": "flexcfl", "clients_per_round": 7, "deadline": "9 s"}
    assert strategy(prox, {"mu": 0.1}) == prox | {"mu": 0.1}
    assert strategy({"clients_per_round": 3}, {"kind": "fedavg"}) == {"clients_per_round": 3, "kind": "fedavg"}


def test_another_kind_of_anything_else_takes_the_whole_place() -> None:
    assert changed(BASE, {"data": {"partition": {"kind": "iid"}}})["data"] == {"partition": {"kind": "iid"}, "source": "digits"}
    assert changed(BASE, {"data": {"partition": "iid"}})["data"]["partition"] == "iid"
    same = changed(BASE, {"data": {"partition": {"kind": "dirichlet", "alpha": 9.0}}})
    assert same["data"]["partition"] == {"kind": "dirichlet", "alpha": 9.0}


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"a..b": 1}, "no key"), ({"a.b": 1, "a": {"b": 2}}, "a.b is given twice"), ({"a.b": 1, "a": 2}, "a is given twice")],
)
def test_what_is_no_change_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        spread_out(changes)


def test_the_first_difference_is_named() -> None:
    assert first_difference(BASE, changed(BASE, {"training": {"lr": 0.2}})) == "training.lr was 0.1, and is 0.2 now"
    assert first_difference({"a": 1}, {"a": 1, "b": {"c": 2}}) == "b.c was not given, and is 2 now"
    assert first_difference(BASE, BASE) == ""


def test_a_file_says_only_what_differs_from_the_one_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "one.toml").write_text('seed = 4\n[training]\nlr = 0.1\nbatch_size = 8\n[strategy]\nkind = "fedprox"\nmu = 0.5')
    (tmp_path / "sub" / "two.toml").write_text('extends = "../one.toml"\ntraining.lr = 0.2\nstrategy.kind = "fedavg"')
    (tmp_path / "three.toml").write_text('extends = "sub/two.toml"\nseed = 5')
    scenario = fedsim.load(tmp_path / "three.toml", ["training.batch_size=9"])
    assert (scenario.seed, scenario.training.lr, scenario.training.batch_size) == (5, 0.2, 9)
    assert scenario == fedsim.Scenario(seed=5, training={"lr": 0.2, "batch_size": 9}, strategy={"kind": "fedavg"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "own.toml' is empty; 'fedsim init quickstart' copies a scenario"),
        ("# seed = 3\n", "own.toml' is empty"),
        ('extends = "nowhere.toml"', "nowhere.toml' does not exist"),
        ('extends = "own.toml"', "own.toml' extends itself"),
        ("extends = 3", "own.toml' extends 3; allowed is the name of a file"),
        ("seed = = 4", "own.toml' is not valid TOML"),
        ("\xff\xfe", "own.toml' is not valid TOML"),  # nor is it UTF-8
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ScenarioError) as raised:
        read_toml(tmp_path / "own.toml", "scenario")
    assert says in str(raised.value)


class TestChanges:
    """What ``--set`` does to a file."""

    SECTIONS = """
        data.partition = "iid"
        model = { kind = "mlp", hidden = [64] }
        population.availability = { kind = "renewal", mean_on = "2 h", mean_off = "1 h" }
        strategy = { kind = "fedprox", mu = 0.5, clients_per_round = 7, deadline = "9 s" }
    """

    def load(self, tmp_path: Path, *changes: str) -> tuple[fedsim.Scenario, list[str]]:
        path = tmp_path / "a.toml"
        path.write_text(self.SECTIONS)
        told: list[str] = []
        return fedsim.load(path, changes, tell=told.append), told

    def test_another_kind_drops_what_it_lacks_and_says_so(self, tmp_path: Path) -> None:
        scenario, told = self.load(
            tmp_path, "strategy.kind=lcfl", "model.kind=logistic", "population.availability.kind=always", "strategy.groups=2"
        )
        assert (scenario.model.kind, scenario.population.availability.kind) == ("logistic", "always")
        assert scenario.model_dump()["strategy"]["deadline"] == "9 s"
        assert told == [
            "strategy.mu = 0.5 is dropped: 'lcfl' has no such key",
            "strategy.clients_per_round = 7 is dropped: 'lcfl' has no such key",  # it inherits the key, and does without
            "model.hidden = [64] is dropped: 'logistic' has no such key",
            "population.availability.mean_on = '2 h' is dropped: 'always' has no such key",
            "population.availability.mean_off = '1 h' is dropped: 'always' has no such key",
        ]

        assert self.load(tmp_path, "strategy.kind=fedprox")[1] == []
        own = "strategy.mu = 0.5 is dropped: 'tests.own_parts:Proud' has no such key"
        assert self.load(tmp_path, "strategy.kind=tests.own_parts:Proud")[1] == [own]

    def test_a_value_is_toml_or_plain_text_and_a_bare_name_becomes_a_table(self, tmp_path: Path) -> None:
        partition = ("data.partition.kind=dirichlet", "data.partition.alpha=0.5")
        scenario, _ = self.load(tmp_path, "training.lr=0.5", "strategy.deadline=11 s", 'learning="off"', *partition)
        assert (scenario.training.lr, scenario.learning, scenario.model_dump()["strategy"]["deadline"]) == (0.5, "off", "11 s")
        assert scenario.data.partition.model_dump() == {"kind": "dirichlet", "alpha": 0.5, "minimum": 2}
        assert fedsim.load(tmp_path / "a.toml", seed=11).seed == 11

    def test_without_a_value_a_key_is_taken_away(self, tmp_path: Path) -> None:
        scenario, _ = self.load(tmp_path, "strategy.deadline=", "population.availability=")
        assert scenario.strategy.model_dump()["deadline"] is None
        assert scenario.population.availability.kind == "always"
        with pytest.raises(ScenarioError, match=r"changes 'strategy.dedline=' takes away .*did you mean 'strategy.deadline'"):
            self.load(tmp_path, "strategy.dedline=")
        assert self.load(tmp_path, 'name=""')[0].name == ""

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            *(([wrong], f"changes {wrong!r}") for wrong in ("training.lr", "=3", ".lr=3", "data.partition.x=3")),
            *(([f"name={wrong}"], r"changes .* is not valid TOML") for wrong in ('{kind="flash"', "[1, 2", '"flash', "'x")),
            (["strategy.agregation=krum", "strategy.kind=fedbuff"], "unknown key 'agregation'"),
            (["strategy.clients_per_round=3", "strategy.kind=fedbuff"], "unknown key 'clients_per_round'"),
            (["model.hidden=[3]", "model.kind=logistic"], "unknown key 'hidden'"),
            (["population.availability.mean_on=3 h", "population.availability=always"], "'always' in the scenario, not a"),
            (["population.availability.mean_on=3 h", 'population.availability={kind="always"}'], "unknown key 'mean_on'"),
            (["training.lr=0.1", "training.lr=0.2"], "is undone by another change"),
            (["model.hidden=[3]", "model="], "model.kind is missing"),
            (["training.lr=0.1", "training.lr="], "is undone by another change|takes away a key that is not given"),
            (["strategy.kind=fedavg", 'strategy={kind="fedbuff"}'], "is undone by another change"),
            (["data.partition.kind=dirichlet", "data.partition=iid"], "is undone by another change"),
        ],
    )
    def test_what_is_given_is_never_dropped_whatever_the_order(self, tmp_path: Path, changes: list[str], says: str) -> None:
        for order in (changes, changes[::-1]):
            with pytest.raises(ScenarioError, match=says):
                self.load(tmp_path, *order)

    def test_changes_that_agree_mean_the_same_in_every_order(self, tmp_path: Path) -> None:
        changes = [
            "strategy.kind=fedbuff", "strategy.buffer=3", "data.partition.kind=dirichlet", "data.partition.alpha=0.5",
            "population.availability=", "population.availability.kind=always", "seed=3", "seed=3", "strategy.mu=",
        ]  # fmt: skip
        scenarios = [self.load(tmp_path, *order)[0] for order in (changes, changes[::-1], changes[4:] + changes[:4])]
        assert scenarios[0] == scenarios[1] == scenarios[2]
        assert (scenarios[0].strategy.kind, scenarios[0].seed) == ("fedbuff", 3)
        with pytest.raises(ScenarioError, match="changes 'seed=4' is undone by another change"):
            fedsim.load(tmp_path / "a.toml", ["seed=4"], seed=5)
