"""Parts of a user's own, by import path, are as good as built-in ones."""

import json
import random
import re
import sys
import traceback
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import tomli_w
from pydantic import Field

from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.common.hooks import refuse_wrong_hooks
from fedsim.lab.terminal import summary_lines
from fedsim.plugin import (
    AggregatingParams,
    Aggregation,
    Codec,
    Deadline,
    Selection,
    Synchronous,
    SynchronousParams,
)
from fedsim.strategies.fedavg import FedAvg
from fedsim.testing import StrategyContract, eventful_world, run
from tests import own_parts
from tests.benchmarks.kills import kill
from tests.calls import call

OWN: dict[str, Any] = {
    "kind": "tests.own_parts:Proud",
    "clients_per_round": 5,
    "local_epochs": 2,
    "deadline": "30 s",
}
OWN |= {"boldness": 0.1, "selection": {"kind": "tests.own_parts:Slowest", "patience": 3.0}}
SECTIONS: dict[str, Any] = {
    "data": {
        "source": {"kind": "tests.own_parts:Rings", "classes": 3},
        "partition": {"kind": "dirichlet", "alpha": 1.0},
    },
    "messages": {"up": "tests.own_parts:Half", "down": "tests.own_parts:Half"},
}
HERE = "tests.own_parts:"
EXECUTORS = [
    "threads",
    "processes",
    pytest.param(
        "ray",
        marks=pytest.mark.skipif(
            find_spec("ray") is None, reason="needs Ray: pip install 'ray>=2.52' 'cloudpickle>=3'"
        ),
    ),
]


class TestOwnParts(StrategyContract):
    strategy: ClassVar[Mapping[str, Any]] = OWN
    sections: ClassVar[Mapping[str, Any]] = SECTIONS


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_a_file_outside_of_any_package_killed_and_resumed_it_is_the_same_run(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = "./mine.py:"
    (tmp_path / "mine.py").write_text(Path(own_parts.__file__).read_text().replace(HERE, there))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sections = eventful_world(OWN, rounds=16) | SECTIONS | {"checkpoint": {"time": "5 s"}}
    sections = json.loads(json.dumps(sections).replace(HERE, there))
    assert HERE not in str(sections)
    result = kill(sections, random.Random(1), tmp_path, "--executor", executor, "--workers", "2")
    assert result["same"], result
    of_one_thread = run(sections)
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    for name in ("events_sha256", "models_sha256", "bytes"):
        assert summary[name] == of_one_thread[name]
    assert summary["bytes"]["by_purpose"]["update"] % 1 == 0
    assert summary["bytes"]["by_purpose"]["times"] > 0


def write(folder: Path, sections: Mapping[str, Any], name: str = "scenario.toml") -> str:
    path = folder / name
    path.write_text(tomli_w.dumps(dict(sections)))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "Clumsy",
            r"AttributeError: 'Ref' object has no attribute 'no_such_thing', in own_parts.py, "
            r"line \d+",
        ),
        (
            "Unfinished",
            r"fedsim: Unfinished \(own_parts.py, line \d+\) has no 'receive', which it has to "
            r"have \(--debug",
        ),
        (
            "Mute",
            r"the content 'model' of a message is a dict; allowed are refs, Partial, numbers, "
            r"Opaque and Header",
        ),
    ],
)
def test_a_mistake_in_it_is_named_with_its_place(tmp_path: Path, kind: str, says: str) -> None:
    sections = {"strategy": {"kind": f"tests.own_parts:{kind}"}, "stop": {"rounds": 3}}
    result = call("run", write(tmp_path, sections), "--out", str(tmp_path / "out"), "--allow-code")
    assert result.exit_code == 1
    assert re.search(says, result.output), result.output
    assert "Traceback" not in result.output


def ran(strategy: dict[str, Any] | str, **population: Any) -> dict[str, Any]:
    return run(
        {"population": {"devices": 20} | population, "strategy": strategy, "stop": {"rounds": 2}}
    )


class TestWhatAPartOfOnesOwnMustNotDo:
    @pytest.mark.parametrize("kind", ["fedavg", "fedbuff"])
    @pytest.mark.parametrize(
        ("chosen", "why"),
        [
            *(
                ([10**6], "device 1000000;"),
                ([-1], "device -1;"),
                (["a"], "device 'a';"),
                ([2, 2], "device 2 twice;"),
            ),
            ([*range(20)], r"device \d+, which is not there or is busy;"),
        ],
    )
    def test_choose_what_cannot_be_asked(self, kind: str, chosen: list[Any], why: str) -> None:
        away = (
            {"availability": {"kind": "renewal", "mean_on": "1 s", "mean_off": "1 h"}}
            if len(chosen) == 20
            else {}
        )
        count = {"fedavg": "clients_per_round", "fedbuff": "concurrency"}[kind]
        with pytest.raises(
            SimulationError,
            match=rf"Wrong\.select \(own_parts\.py, line \d+\) has chosen {why} allowed",
        ):
            ran(
                {
                    "kind": kind,
                    count: 20,
                    "selection": {"kind": "tests.own_parts:Wrong", "chosen": chosen},
                },
                **away,
            )

    @pytest.mark.parametrize(
        ("kind", "hook", "says"),
        [
            ("Misread", "asks", r"is 'def asks\(self\)'; it must be a property"),
            ("Hasty", "choose", r"is 'def choose\((.*)\)'; it must be 'async def choose\(\1\)'"),
            (
                "Narrow",
                "select",
                r"is 'def select\(self, server, count\)'; it must be 'def select\(self, "
                r"server, state",
            ),
            ("Timely", "reply", r"is 'async def reply\((.*)\)'; it must be 'def reply\(\1\)'"),
        ],
    )
    def test_have_a_hook_of_another_form(self, kind: str, hook: str, says: str) -> None:
        path = f"tests.own_parts:{kind}"
        strategy = {"kind": path} if kind == "Timely" else {"kind": "fedavg", "selection": path}
        with pytest.raises(ScenarioError, match=rf"\.{hook} \(own_parts.py, line \d+\) {says}"):
            ran(strategy)

    def test_have_a_key_where_a_property_stands_before_it(self) -> None:
        with pytest.warns(UserWarning, match="shadows"):

            class Keyed(own_parts.Slowest):
                asks: bool = True  # type: ignore[assignment, misc]

        with pytest.raises(
            ScenarioError,
            match=r"Keyed.asks \(test_own_parts.py, line \d+\) is a key; it must be a property",
        ):
            refuse_wrong_hooks(Keyed, "kind")

    @pytest.mark.parametrize(
        ("annotation", "says"),
        [
            (
                float,
                r"is a key of type float; the inherited key holds int: repeat its type, or "
                r"choose another name",
            ),
            (int | str, r"is a key of type int \| str; the inherited key holds int"),
            (bool, r"is a key of type bool; the inherited key holds int"),
            (list[int], r"is a key of type list\[int\]; the inherited key holds int"),
        ],
    )
    def test_have_a_key_of_another_type_than_the_inherited_one(
        self, annotation: Any, says: str
    ) -> None:
        retyped = type(
            "Retyped",
            (FedAvg.Params,),
            {"__annotations__": {"local_epochs": annotation}, "__module__": __name__},
        )
        own = type("Own", (FedAvg,), {"Params": retyped, "__module__": __name__})
        with pytest.raises(ScenarioError, match=rf"kind: Retyped.local_epochs.* {says}"):
            refuse_wrong_hooks(own, "kind")

    @pytest.mark.parametrize(
        ("base", "former", "present"),
        [
            (FedAvg.Client, "sent", "on_sent"),
            (Selection, "heard", "on_task_end"),
            (Selection, "closed", "on_round_end"),
            (Deadline, "heard", "on_task_end"),
            (Aggregation, "told", "record_fields"),
            (Aggregation, "looks_at_each", "why_single_updates"),
            (Selection, "looks_at_each", "why_single_updates"),
            (Codec, "split", "encode"),
        ],
    )
    def test_define_no_hook_by_its_former_name(self, base: type, former: str, present: str) -> None:
        own = type("Own", (base,), {former: lambda self: None, "__module__": __name__})
        with pytest.raises(ScenarioError, match=rf"Own\.{former}.* now called '{present}'"):
            refuse_wrong_hooks(own, "kind")
        halved = type("Halved", (FedAvg,), {"Client": own, "__module__": __name__})
        if issubclass(own, FedAvg.Client):
            with pytest.raises(ScenarioError, match=rf"Own\.{former}"):
                refuse_wrong_hooks(halved, "kind")

    @pytest.mark.parametrize(
        ("former", "present"),
        [("keeps_rest", "stores_residual"), ("sends", "sent_share"), ("of_sums", "for_added_up")],
    )
    @pytest.mark.parametrize("value", [True, property(lambda self: 1.0)])
    def test_define_no_property_by_its_former_name(
        self, former: str, present: str, value: object
    ) -> None:
        annotations = {former: ClassVar[Any]}
        namespace = {former: value, "__module__": __name__, "__annotations__": annotations}
        own = type("Own", (Codec,), namespace)
        with pytest.raises(ScenarioError, match=rf"Own\.{former}.* now called '{present}'"):
            refuse_wrong_hooks(own, "kind")

    @pytest.mark.parametrize("annotation", [int, Annotated[int, Field(ge=2)], Literal[1, 2], None])
    def test_may_narrow_an_inherited_key(self, annotation: Any) -> None:
        annotations = {"local_epochs": annotation}
        narrowed = type(
            "Narrowed", (FedAvg.Params,), {"__annotations__": annotations, "__module__": __name__}
        )
        refuse_wrong_hooks(
            type("Own", (FedAvg,), {"Params": narrowed, "__module__": __name__}), "kind"
        )

    def test_choose_nothing_at_all(self) -> None:
        says = r"Silent\.select \(own_parts\.py, line \d+\) returns None; allowed is a list"
        with pytest.raises(SimulationError, match=says):
            ran({"kind": "fedavg", "selection": "tests.own_parts:Silent"})

    def test_wait_for_real_time(self) -> None:
        with pytest.raises(
            SimulationError, match="a handler waits for something that is no value"
        ) as caught:
            ran("tests.own_parts:Sleepy")
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert "sleep(0.01)" in str(
            next(frame.line for frame in frames if frame.filename == own_parts.__file__)
        )

    def test_make_models_of_what_is_no_number(self) -> None:
        summary = ran("tests.own_parts:NoNumber")
        assert re.fullmatch(r"global \(own_parts\.py, line \d+\)", summary["not_finite"])
        assert summary_lines(summary)[-1].endswith(summary["not_finite"])
        assert "not_finite" not in ran("fedavg")


def test_a_selection_sees_battery_charger_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 samples at 1 a second and 3 W leave 970 of 1,000 J; what idles draws nothing here, and
    no link takes any time.
    """
    seen: dict[int, list[Any]] = {}
    monkeypatch.setattr(
        own_parts.Charged,
        "on_task_end",
        lambda _, __, ___, message: seen.update({message.device: message["power"]}),
    )
    sections: dict[str, Any] = {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1 kB"},
        "population": {"devices": 4, "speed": "1 samples/s", "samples": {"low": 10, "high": 10}},
        "strategy": {
            "clients_per_round": 4,
            "local_epochs": 1,
            "selection": "tests.own_parts:Charged",
        },
        "energy": {"compute": "3 W", "battery": {"capacity": "1000 J"}},
        "stop": {"rounds": 1},
    }
    run(sections)
    assert seen == {device: [pytest.approx(0.97), False, None] for device in range(4)}
    sections["energy"] = {"preset": ["smartphone-wifi", "smartphone-4g"]}
    result = run(sections)
    assert {tuple(power[:2]) for power in seen.values()} == {(1.0, True)}
    assert {power[2] for power in seen.values()} == {"smartphone-wifi", "smartphone-4g"}
    assert result["status"] == "done"


class _Taken(Synchronous[Any]):
    """A strategy whose model is under the name of an entry of the loop."""

    Params = AggregatingParams

    async def on_start(self) -> None:
        self.state["slow"] = self.server.models.initial()
        await super().on_start()

    def contents(self, device: int) -> dict[str, Any]:
        return {"model": self.server.models.initial()}

    async def aggregate(self) -> None:
        return None

    def center(self, entry: dict[str, Any]) -> None:
        return None

    def models(self) -> dict[str, Any]:
        return {"global": (self.state["slow"], None)}


class _Mixing(_Taken):
    """A strategy that mixes with such an entry."""

    async def aggregate(self) -> None:
        self.state["slow"] = self.server.models.mix([(self.state["slow"], 1.0)])


class _Keyless(_Taken):
    """A strategy that aggregates, and has no key that says how."""

    Params = SynchronousParams

    async def aggregate(self) -> None:
        self.state["model"] = await self.next_model(
            self.server.models.initial(), self.state["received"]
        )


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (
            _Taken,
            r"_Taken\.models \(test_own_parts.py, line \d+\) returns 0 for 'global'; allowed is a "
            r"dict .* pairs of a model \(Ref\).* use another name",
        ),
        (_Mixing, r"mix is given 0; a model \(Ref\) is needed; .* use another name"),
        (
            _Keyless,
            r"'aggregation' and 'server', which SynchronousParams has not; .*AggregatingParams "
            r"or CombiningParams",
        ),
    ],
)
def test_what_a_strategy_in_rounds_lacks_is_said(strategy: type, says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        ran({"kind": f"{__name__}:{strategy.__name__}"})
