"""Plans of links with queues: what does not concern a flow does not change it, to the bit."""

import random
from copy import deepcopy

import numpy as np
import pytest

from fedsim.world.network.filling import max_min
from fedsim.world.network.queues.bbr import OTHER, first_estimates
from fedsim.world.network.queues.congestion import Control, first_state
from fedsim.world.network.queues.deliveries import Deliveries
from fedsim.world.network.queues.links import (
    QueuedLinks,
    label_components,
    share_first_links,
)
from fedsim.world.network.queues.queued_flows import NewFlow
from fedsim.world.network.queues.sharing import Queueing
from fedsim.world.network.queues.step_plan import QueueingRules
from fedsim.world.network.queues.time_steps import LinkComponent

PACKET = 1514.0
CONTROLS: list[Control] = ["cubic", "reno", "bbr"]


def build(control: Control, holds_back: bool = False, pacing: bool = False) -> Queueing:
    rules = QueueingRules(
        control=control,
        packet=PACKET,
        initial_window=10.0,
        queue_s=0.03,
        queue_bytes=None,
        queues={},
        hystart=True,
        pacing=pacing,
        holds_back=holds_back,
    )
    return Queueing(rules)


def begin_uploads(rule: Queueing, now: float, first: int = 0, link: str = "server") -> None:
    """Begin four uploads over one link, with losses on their own links."""
    for number in range(first, first + 4):
        route = [(f"{link} {number}", 1e6), (link, 1.5e6)]
        round_trip = 0.01 * (1 + number % 4)
        rule.begin(number, 2e5 + 1e5 * (number % 4), now, route, round_trip, (number, 99), number)
        rule.set_loss(number, 0.002, 0.0, now)
    rule.share(now)


def ends_without_interruptions(rule: Queueing) -> list[tuple[float, int]]:
    begin_uploads(rule, 0.0)
    return rule.advance(60.0)


def do_nothing(rule: Queueing, draw: random.Random, now: float) -> None:
    """Do one of the things that change nothing for the four uploads of ``begin_uploads``."""
    running = [number for number in range(4) if any(c.has_flow(number) for c in rule.components)]
    if not running:
        return
    number = draw.choice(running)
    other = 1000 + draw.randrange(10**6)
    match draw.randrange(8):
        case 0:
            rule.set_capacity("server", 1.5e6, now)
        case 1:
            rule.set_rate(f"server {number}", 1e6, now)
        case 2:
            rule.set_loss(number, 0.002, 0.0, now)
        case 3:
            rule.set_round_trip(number, 0.01 * (1 + number), now)
        case 4:
            rule.begin(other, 1e5, now, [("elsewhere", 1e6)], 0.02, (other, 98), other)
        case 5:
            rule.sent(number, now)
            rule.rate(number)
            rule.queued()
        case 6:
            rule.set_capacity("link without flows", 1.0, now)
        case 7:
            rule.begin(other, 1e5, now, [("elsewhere", 1e6)], 0.02, (other, 98), other)
            rule.share(now)
            rule.leave(other, now)
    rule.share(now)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("seed", range(4))
def test_interruptions_that_change_nothing_for_flows_leave_their_ends_to_the_bit(
    control: Control, seed: int
) -> None:
    pacing = seed % 2 == 1
    expected = ends_without_interruptions(build(control, pacing=pacing))
    rule = build(control, pacing=pacing)
    begin_uploads(rule, 0.0)
    draw = random.Random(seed)
    ended: list[tuple[float, int]] = []
    now = 0.0
    for _ in range(60):
        now += draw.expovariate(1 / 0.03)
        ended += rule.advance(now)
        do_nothing(rule, draw, now)
    ended += rule.advance(now + 60.0)
    assert [end for end in ended if end[1] < 4] == expected
    assert len(expected) == 4


@pytest.mark.parametrize("control", CONTROLS)
def test_a_plan_changes_nothing_and_a_second_plan_is_the_first(control: Control) -> None:
    rule = build(control)
    begin_uploads(rule, 0.0)
    for step in range(1, 40):
        rule.advance(0.01 * step)
        (component,) = rule.components
        again = deepcopy(component)
        again.give_up_plan(again._since)
        fresh = deepcopy(again)
        fresh.plan()
        fresh.give_up_plan(fresh._since)
        fresh.plan()
        for name in ("sent", "delivered", "dropped", "credit", "ends", "waiting"):
            planned = getattr(component._plan, name)
            assert getattr(fresh._plan, name).tobytes() == planned.tobytes()
        for name in ("friendly", "epoch", "least_wait", "window"):
            before = getattr(again.senders, name)
            assert getattr(fresh.senders, name).tobytes() == before.tobytes()


def test_flows_that_share_no_link_do_not_interrupt_each_other() -> None:
    alone = build("cubic")
    begin_uploads(alone, 0.0)
    expected = alone.advance(60.0)
    rule = build("cubic")
    begin_uploads(rule, 0.0)
    ended = rule.advance(0.123)
    begin_uploads(rule, 0.123, first=4, link="other")
    assert len(rule.components) == 2
    ended += rule.advance(60.0)
    assert [end for end in ended if end[1] < 4] == expected
    assert not rule.components


def test_a_flow_joins_components_and_its_end_parts_them() -> None:
    rule = build("cubic")
    for number in range(2):
        rule.begin(number, 5e5, 0.0, [(f"link {number}", 1e6)], 0.02, (number, 9), number)
    rule.share(0.0)
    assert len(rule.components) == 2
    rule.advance(0.05)
    rule.begin(2, 5e4, 0.05, [("link 0", 1e6), ("link 1", 1e6)], 0.02, (2, 9), 2)
    rule.share(0.05)
    assert len(rule.components) == 1
    assert np.abs(rule.balance()).max() < 1e-3
    (_, first), *others = rule.advance(60.0)
    assert first == 2
    assert sorted(flow_id for _, flow_id in others) == [0, 1]
    # 50 kB more on each link
    assert max(end for end, _ in others) == pytest.approx(0.02 + 5.5e5 / 1e6, rel=0.1)


def test_components_part_after_the_flow_that_joined_them() -> None:
    rule = build("reno")
    rule.begin(0, 5e5, 0.0, [("left", 1e6)], 0.02, (0, 9), 0)
    rule.begin(1, 5e5, 0.0, [("right", 1e6)], 0.02, (1, 9), 1)
    rule.begin(2, 1e4, 0.0, [("left", 1e6), ("right", 1e6)], 0.02, (2, 9), 2)
    rule.share(0.0)
    assert len(rule.components) == 1
    rule.leave(2, 0.0)
    rule.share(0.0)
    assert [list(component.links.names) for component in rule.components] == [["left"], ["right"]]


def test_labels_of_components() -> None:
    route = np.array([[1, 0], [2, 3], [4, 0], [3, 1], [0, 0]])
    assert label_components(route, 5).tolist() == [0, 0, 2, 0, 4]


@pytest.mark.parametrize("seed", range(5))
def test_first_links_are_shared_max_min(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first = generator.integers(1, 4, 12)
    wants = generator.uniform(0.0, 10.0, 12)
    room = np.array([np.inf, 5.0, 20.0, 1e3])
    expected = max_min(room, first.reshape(-1, 1), wants, np.ones(12))
    assert share_first_links(wants, first, room) == pytest.approx(expected)


def test_an_interrupted_step_keeps_its_begin() -> None:
    rules = build("cubic")._rules
    component = LinkComponent(rules)
    sender = first_state(0.04, 10.0, np.inf, 0.0)
    estimates = first_estimates(0.04, 10.0, 0.0, 1) | {"state": float(OTHER)}
    flow = NewFlow(0, 1e6, [("link", 1e6)], (0, 1), 5, sender, estimates)
    component.add(flow, 0.0)
    component.plan()
    plan = component._plan
    assert plan is not None
    component.commit(plan.length_s / 4)
    assert component._sent.item() == pytest.approx(plan.sent.item() / 4)
    assert component.balance().item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_flows_that_begin_later_are_grouped_as_if_all_had_begun_at_once(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rules = build("cubic", holds_back=True)._rules
    late = QueuedLinks(rules)
    hops = 2 + seed % 2
    names = [f"link {number}" for number in range(8)]
    routes = []
    lasts = []
    for _ in range(12):
        chosen = generator.permutation(8)[: generator.integers(1, hops + 1)]
        numbers = [late.add(names[number], 1e6) for number in chosen.tolist()]
        routes.append([*numbers, *[0] * (hops - len(numbers))])
        lasts.append(len(numbers) - 1)
        if generator.random() < 0.6:
            late.group(np.array(routes), np.array(lasts))
    late.group(np.array(routes), np.array(lasts))
    at_once = QueuedLinks(rules)
    for name in late.names:
        at_once.add(name, 1e6)
    at_once.group(np.array(routes), np.array(lasts))
    assert late.grouped == at_once.grouped == 12
    assert late.never_full.tolist() == at_once.never_full.tolist()
    assert len(late.levels) == len(at_once.levels)
    for level, expected in zip(late.levels, at_once.levels, strict=True):
        for name in ("number", "flows", "links", "cells", "is_last"):
            assert np.array_equal(getattr(level, name), getattr(expected, name)), name


@pytest.mark.parametrize("seed", range(5))
def test_deliveries_of_flows_stay_theirs_when_others_come_and_go(seed: int) -> None:
    generator = np.random.default_rng(seed)
    deliveries = Deliveries()
    curves: list[dict[float, float]] = []
    now = 0.0
    for _ in range(120):
        now += float(generator.uniform(0.001, 0.02))
        if not curves or generator.random() < 0.4:
            deliveries.add_flow()
            curves.append({})
        if len(curves) > 1 and generator.random() < 0.3:
            stays = generator.random(len(curves)) < 0.8
            stays[0] = True
            deliveries.select(stays)
            curves = [curve for curve, stay in zip(curves, stays, strict=True) if stay]
        for curve in curves:
            curve[now] = max(curve.values(), default=0.0) + float(generator.integers(0, 3))
        deliveries.add(now, np.array([curve[now] for curve in curves]), 10.0)
        past = now - float(generator.uniform(0.0, 0.2))
        found = deliveries.at(np.full(len(curves), past))
        for row, curve in enumerate(curves):
            if min(curve) <= past:
                expected = np.interp(past, list(curve), list(curve.values()))
                assert found[row] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_the_time_before_a_flow_had_more_is_found_within_the_time_that_is_looked_at(
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    deliveries = Deliveries()
    for _ in range(4):
        deliveries.add_flow()
    times = np.cumsum(generator.uniform(0.001, 0.02, 80))
    curves = np.cumsum(generator.integers(0, 2, (80, 4)) * 100.0, axis=0)
    for now, row in zip(times.tolist(), curves, strict=True):
        deliveries.add(now, row, 100.0)
    flows = np.array([0, 1, 3])
    for _ in range(50):
        begins = generator.uniform(0.0, times[-1], 3)
        length_s = 0.05
        above = np.array([np.interp(begins[k], times, curves[:, flows[k]]) for k in range(3)])
        above += generator.integers(0, 2) * 100.0
        found = deliveries.times_before_exceeding(flows, above, begins, length_s)
        for place, flow in enumerate(flows.tolist()):
            after = int((curves[:, flow] > above[place]).argmax())
            expected = times[max(after - 1, 0)] if curves[-1, flow] > above[place] else np.inf
            within = begins[place] <= expected < begins[place] + length_s
            if within:
                assert found[place] == expected
            else:
                assert not begins[place] <= found[place] < begins[place] + length_s


def test_estimates_of_bbr_are_kept_while_a_flow_uses_it() -> None:
    rule = build("cubic")
    begin_uploads(rule, 0.0)
    rule.advance(0.1)
    assert not len(rule.components[0].bbr.state)
    rule.begin(9, 1e5, 0.1, [("server", 1.5e6)], 0.02, (9, 99), 9, "bbr")
    rule.share(0.1)
    (component,) = rule.components
    assert component.bbr.is_used.tolist() == [False] * 4 + [True]
    rule.advance(0.3)
    rule.leave(9, 0.3)
    rule.share(0.3)
    assert not len(rule.components[0].bbr.state)
    assert len(rule.advance(60.0)) == 4
