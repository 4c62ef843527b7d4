"""The report in a real browser, opened from disk: it draws, zooms, finds, and asks no network
for anything.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report import write_report
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world
from tests.analysis.chromium import Page, browser, executable
from tests.lab.conftest import finish, write

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on this machine: install chromium to look at reports"
)

_READY = (
    "[...document.querySelectorAll('.timeline')].filter(one => one.offsetParent && "
    "one.dataset.ready === 'yes').length"
)
_UNFOLD = "document.querySelectorAll('details').forEach(details => { details.open = true; })"
_STAGE = "document.querySelectorAll('.stage')[0]"


@pytest.fixture(scope="module")
def report(
    grouped: RunFolder, grouped_scenario: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three runs, of which two are seen: one with groups, and twice one whose names would run as
    scripts.
    """
    folder = tmp_path_factory.mktemp("report")
    hostile = folder / "<img src=x onerror=window.hacked=1>"
    changes = {
        "name": "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>",
        "learning": "off",
        "strategy": {"kind": "fedavg", "clients_per_round": 6},
    }
    fedsim.run(fedsim.Scenario(**grouped_scenario | changes), hostile, executor="inline")
    return write_report([grouped.path, hostile, hostile], folder / "report.html")


@pytest.fixture(scope="module")
def opened(report: Path) -> Iterator[Page]:
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        page.open(report)
        assert page.ask(_READY) == 0  # what is folded is made when it is opened
        page.ask(_UNFOLD)
        page.wait_for(f"{_READY} === 2")
        yield page


@pytest.fixture
def page(opened: Page) -> Page:
    opened.resize(1280, 900)
    opened.ask("document.querySelector('.timeline [data-do=whole]').click()")
    return opened


def view(page: Page, place: int = 0) -> tuple[float, float, float]:
    data = page.ask(
        f"(() => {{ const d = document.querySelectorAll('.stage')[{place}].dataset; return "
        f"[d.from, d.to, d.lane]; }})()"
    )
    return float(data[0]), float(data[1]), float(data[2])


def told(page: Page) -> str:
    return str(page.ask("document.querySelector('.told').textContent"))


def choose(page: Page, name: str, value: str) -> None:
    to = f"checked = {value}" if value in ("true", "false") else f"value = '{value}'"
    field = f"document.querySelector('[name={name}]')"
    page.ask(f"(() => {{ {field}.{to}; {field}.dispatchEvent(new Event('change')); }})()")


def drawn(page: Page) -> dict[str, int]:
    """How many pixels of the lanes have which colour, after the next frame."""
    counts = page.ask(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {"
        " const lanes = document.querySelector('canvas.lanes'), counts = {};"
        " const data = lanes.getContext('2d').getImageData(0, 0, lanes.width, lanes.height).data;"
        " for (let i = 0; i < data.length; i += 4) {"
        "  const colour = '#' + [0, 1, 2].map(k => data[i + k].toString(16).padStart(2, "
        "'0')).join('');"
        "  counts[colour] = (counts[colour] ?? 0) + 1; }"
        " done(counts); })))"
    )
    return {str(colour): int(count) for colour, count in counts.items()}


def test_it_loads_nothing_and_nothing_goes_wrong(page: Page) -> None:
    assert page.errors == []
    assert page.requests == []
    assert page.ask("window.hacked") is None
    assert page.ask("document.querySelectorAll('.stage').length") == 3
    assert page.ask(_READY) == 2
    for colour in ("#56b4e9", "#009e73", "#0072b2"):  # download, training, upload
        # a busy machine paints some frames later
        assert any(drawn(page).get(colour, 0) > 20 for _ in range(100)), colour
    page.resize(390, 800)
    page.wait_for("document.querySelector('canvas.lanes').clientWidth < 360")
    assert any(drawn(page).get("#009e73", 0) > 20 for _ in range(100))


def test_policy_forbids_what_is_not_in_the_file(page: Page) -> None:
    page.ask(
        "(() => { const script = document.createElement('script'); script.textContent = "
        "'window.hacked = 2';"
        " document.body.append(script); const image = new Image(); image.src = "
        "'file:///etc/hostname';"
        " document.body.append(image); image.remove(); script.remove(); })()"
    )
    assert (
        page.ask("fetch('data:text/plain,x').then(() => 'fetched', () => 'refused')") == "refused"
    )
    assert page.ask("window.hacked") is None
    assert any("Content Security Policy" in error for error in page.errors)
    page.errors.clear()
    page.requests.clear()


def test_the_wheel_zooms_around_the_pointer_and_out_again(page: Page, grouped: RunFolder) -> None:
    whole = view(page)
    assert whole[:2] == pytest.approx((0.0, grouped.summary["simulated_s"]), abs=1e-3)
    x, y = page.middle(".stage")
    # a page that was just scrolled keeps the wheel for a while
    page.ask("new Promise(done => setTimeout(done, 300))")
    page.wheel(x, y, -240)
    page.wait_for(f"{_STAGE}.dataset.to - {_STAGE}.dataset.from < {0.6 * whole[1]}")
    zoomed = view(page)
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    assert view(page, 1)[:2] == pytest.approx(zoomed[:2])  # the other timeline goes along
    page.wheel(x, y, -240, shift=True)
    page.wait_for(f"{_STAGE}.dataset.lane > {1.2 * whole[2]}")
    page.wheel(x, y, 4000)
    page.wait_for(f"{_STAGE}.dataset.to - {_STAGE}.dataset.from > {0.99 * whole[1]}")


def test_keys_and_dragging_move_and_zoom(page: Page) -> None:
    page.ask(f"{_STAGE}.focus()")
    whole = view(page)
    page.key("+")
    half = view(page)
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    page.key("ArrowRight")
    assert view(page)[0] > half[0]
    page.key("Home")
    assert view(page)[0] == 0
    page.key("End")
    assert view(page)[1] == pytest.approx(whole[1])
    page.key("]")
    assert view(page)[2] > whole[2]
    page.key("0")
    assert view(page) == whole
    page.click(".timeline [data-do=in]")
    x, y = page.middle(".stage")
    before = view(page)
    page.mouse("mousePressed", x, y)
    for by in (10, 60, 120):
        page.mouse("mouseMoved", x - by, y, pressed=True)
    page.mouse("mouseReleased", x - 120, y)
    assert view(page)[0] > before[0]
    assert view(page)[1] - view(page)[0] == pytest.approx(before[1] - before[0])


def find(page: Page, what: str, text: str) -> str:
    page.ask(f"document.querySelector('.timeline [name={what}]').value = ''")
    page.click(f".timeline [name={what}]")
    page.write(text)
    page.click(f".timeline form[data-find={what}] button")
    return told(page)


def missed(page: Page, what: str) -> str:
    return str(
        page.ask(f"document.querySelector('.timeline form[data-find={what}] .missed').textContent")
    )


def test_a_device_is_found_and_its_tasks_are_told(page: Page, grouped: RunFolder) -> None:
    tasks = [
        event for event in grouped.events if event["kind"] == "task-end" and event["device"] == 7
    ]
    assert tasks
    said = find(page, "device", "7")
    assert said.startswith("Device 7. ")
    assert f"{len(tasks)} tasks: " in said
    assert view(page)[2] >= 18
    page.ask(f"{_STAGE}.focus()")
    page.key("n")
    first = next(
        event for event in grouped.events if event["kind"] == "step-start" and event["device"] == 7
    )
    assert told(page).startswith(f"Device 7, {first['step']}. ")
    assert f"task {first['task']}" in told(page)
    page.key("Escape")
    assert told(page) == ""
    for wrong, answer in (("4000", "no device 4000"), ("<b>", "whole number")):
        assert find(page, "device", wrong) == ""
        assert answer in missed(page, "device")
    find(page, "device", "7")
    assert missed(page, "device") == ""


def test_a_round_is_shown_from_the_field_and_from_the_table(page: Page, grouped: RunFolder) -> None:
    begin, end = grouped.rounds[2]["time"], grouped.rounds[3]["time"]
    said = find(page, "round", "3")
    assert said.startswith("Round 3, ")
    longest = max(CriticalPaths(grouped).round(3).steps, key=lambda step: step.seconds)
    steps = {longest.step}
    if longest.step == "train":
        steps.add("pre-training")  # as the page names a training of a preparation
    assert any(f"longest for device {longest.device}, {step}: " in said for step in steps)
    first, last, _ = view(page)
    assert first < begin < end < last
    assert last - first < 1.3 * (end - begin)
    find(page, "round", "99")
    assert "no round 99" in missed(page, "round")
    page.ask("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    page.wait_for(
        "!!document.querySelector('button[data-round=\"5\"][data-timeline=timeline-0-data]')"
    )
    page.click("button[data-round='5'][data-timeline='timeline-0-data']")
    assert told(page).startswith("Round 5, ")


def test_devices_are_sorted_and_shown(page: Page) -> None:
    page.ask("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    table = (
        "[...document.querySelectorAll('table.sortable')].find(one => "
        "one.tHead.textContent.includes('share wasted'))"
    )
    column = "[...table.rows].slice(1).map(row => Number(row.cells[3].dataset.v))"
    click = "table.tHead.rows[0].cells[3].click();"
    tasks, once, again = (
        page.ask(f"(() => {{ const table = {table}; {does} return {column}; }})()")
        for does in ("", click, click)
    )
    assert once == sorted(tasks, reverse=True) != sorted(tasks)
    assert again == sorted(tasks)
    device = page.ask(f"{table}.tBodies[0].rows[0].querySelector('button').dataset.device")
    page.click("table.sortable button[data-device][data-timeline='timeline-0-data']")
    assert told(page).startswith(f"Device {device}. ")


def test_another_run_is_chosen(page: Page) -> None:
    seen = (
        "[...document.querySelectorAll('[data-run]:not([hidden])')].map(part => part.dataset.run)"
    )
    assert page.ask(seen) == ["0", "1", "0", "1"]
    choose(page, "second-run", "2")
    page.wait_for(f"{_READY} === 2")
    assert page.ask(seen) == ["0", "2", "0", "2"]
    choose(page, "second-run", "")
    assert page.ask(seen) == ["0", "0"]
    choose(page, "second-run", "1")
    assert page.ask(seen) == ["0", "1", "0", "1"]
    assert page.errors == []


def test_what_the_pointer_is_on_is_told(page: Page, grouped: RunFolder) -> None:
    find(page, "device", "7")
    page.ask(f"{_STAGE}.focus()")
    page.key("n")
    _, y = page.middle(".stage")
    box = page.ask(
        f"(() => {{ const b = {_STAGE}.getBoundingClientRect(); return [b.x, b.y, b.width]; }})()"
    )
    seen = set()
    for share in range(15, 98, 3):
        page.mouse("mouseMoved", box[0] + box[2] * share / 100, y)
        page.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seen.add(page.ask("document.querySelector('.hover').textContent"))
    assert len(seen) > 3
    assert any(re.match(r"Device \d+", text) for text in seen)


def test_orders_and_tints_change_the_picture(page: Page) -> None:
    before = drawn(page)
    choose(page, "tint", "false")
    assert drawn(page).get("#efefef", 0) > before.get("#efefef", 0) + 1000
    choose(page, "tint", "true")
    choose(page, "order", "group")
    assert drawn(page).keys() >= {"#009e73"}
    over = "document.querySelector('canvas.over').toDataURL()"
    with_path = page.ask(over)
    page.click(".timeline [name=path]")
    drawn(page)
    assert page.ask(over) != with_path
    page.click(".timeline [name=path]")


def test_a_link_opens_the_part_that_it_names(page: Page) -> None:
    page.ask("document.querySelectorAll('details').forEach(details => { details.open = false; })")
    assert not page.ask("document.querySelector('#tables table').checkVisibility()")
    page.ask("document.querySelector('a[href=\"#tables\"]').click()")
    assert page.ask("document.querySelector('#tables table').checkVisibility()")
    assert not page.ask("document.querySelector('#scenario p').checkVisibility()")
    page.ask(_UNFOLD)


def test_lines_of_the_chart_are_hidden_shown_and_told(page: Page, grouped: RunFolder) -> None:
    page.wait_for("document.querySelector('.chart').dataset.ready === 'yes'")
    unit = 60 if grouped.summary["simulated_s"] >= 180 else 1
    last = grouped.rounds[-1]["time"] / unit
    # the axis ends with the line
    assert float(page.ask("document.querySelector('.chart').dataset.end")) == pytest.approx(last)
    said = []
    for _ in range(2):
        x, y = page.middle(".chart .u-over")
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - 9, y=y)
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        page.wait_for("document.querySelector('.chart output').textContent")
        said.append(page.ask("document.querySelector('.chart output').textContent"))
        page.ask("document.querySelector('.chart [name=smooth]').click()")
    assert said[0] == said[1]  # figures are those of the rounds, smoothed or not
    assert page.ask("document.querySelector('.chart + details').textContent").startswith(
        "The same as a table"
    )
    first = "document.querySelector('.chart [data-line]')"
    assert page.ask(f"{first}.getAttribute('aria-pressed')") == "true"
    x, y = page.middle(".chart .u-over")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait_for(
        "/: 0\\.[0-9]{3} .*at .* simulated time/.test(document.querySelector('.chart "
        "output').textContent)"
    )
    page.ask("document.querySelector('.chart [data-show=\"0\"]').click()")
    assert page.ask(f"{first}.getAttribute('aria-pressed')") == "false"
    page.ask("document.querySelector('.chart [data-show]').click()")
    assert page.ask(f"{first}.getAttribute('aria-pressed')") == "true"
    assert page.errors == []


@pytest.fixture(scope="module")
def answered(opened: Page, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a study with a grid, in the same browser: rankings, a heat map, and a Pareto
    front.
    """
    folder = tmp_path_factory.mktemp("answered")
    base = quiet_world({"kind": "fedavg", "clients_per_round": 4}, rounds=2) | {
        "energy": {"preset": "laptop"}
    }
    tables = {
        "base": base,
        "seeds": [1, 2],
        "target": 0.05,
        "grid": {"strategy.local_epochs": [1, 2]},
    }
    tables |= {
        "variants": {
            "plain": {},
            "a name that is long enough to be folded": {"messages.up": "int8"},
        }
    }
    opened.open(write_report([finish(write(folder / "study.toml", tables), folder / "study")]))
    opened.ask(_UNFOLD)
    opened.wait_for(f"{_READY} === 2")
    opened.wait_for("[...document.querySelectorAll('[data-html]')].every(part => part.textContent)")
    return opened


_OVERLAPPING = """
(() => { const boxes = [...document.querySelectorAll('h1, h2, h3, figcaption, caption, .tiles dt, .front text')]
  .filter(e => e.offsetParent || e.ownerSVGElement).map(e => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width);
  const apart = (a, b) => a.bottom <= b.top + 1 || b.bottom <= a.top + 1 || a.right <= b.left + 1 || b.right <= a.left + 1;
  return boxes.flatMap(([one, a], at) => boxes.slice(at + 1).filter(([, b]) => !apart(a, b))
    .map(([other]) => `${one.textContent} / ${other.textContent}`)); })()"""
_CUT = """
[...document.querySelectorAll('h1, h2, h3, p, figure img, li, dd, caption, button')]
  .concat([...document.querySelectorAll('.plots > div, .plot th, .plot td:nth-child(2), .heat td')])
  .filter(e => e.offsetParent && (e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth + 1))
  .filter(e => getComputedStyle(e).display !== 'inline').map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_cut_and_no_titles_overlap(answered: Page, width: int, theme: str) -> None:
    answered.resize(width, 900)
    answered.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
    )
    answered.wait_for(f"document.documentElement.scrollWidth <= {width}")
    assert answered.ask("document.querySelectorAll('.heat, .front').length") >= 2
    assert answered.ask(_OVERLAPPING) == []
    assert answered.ask(_CUT) == []
    colours = (
        answered.ask(f"getComputedStyle(document.body).{name}")
        for name in ("backgroundColor", "color")
    )
    back, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert (back < 100 < 500 < ink) == (theme == "dark")
    is_inverted = "invert" in answered.ask(
        "getComputedStyle(document.querySelector('.stage canvas')).filter"
    )
    assert is_inverted == (theme == "dark")  # an empty picture's white is the page's back
    assert answered.errors == answered.requests == []
