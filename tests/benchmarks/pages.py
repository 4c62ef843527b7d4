"""Pages of reports as a reader sees them: pictures of each, and texts that overlap or are cut.

    python -m tests.benchmarks.pages PAGE.html... --out FOLDER [--width 1400 390] [--theme light dark]
    python -m tests.benchmarks.pages --pictures RUN...

With ``--pictures`` it draws all pictures of each run folder, and prints the pairs of their texts that
overlap.

It opens each page in headless Chromium, at each width and in each colour scheme, folded as it opens
and with every fold open. For each it writes a picture of the whole page, and prints the page's
height and the pairs of texts whose boxes overlap, and elements that are wider than their room. Not
part of the tests: it takes some seconds a page, and its pictures are for people to look at.
"""

import argparse
import base64
import tempfile
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedsim.analysis.pictures import OF_ONE, OF_SEVERAL
from fedsim.analysis.style import NothingToDrawError, pixels
from fedsim.records.reading import RunFolder
from tests.analysis.chromium import Page, browser

_TALLEST = 16_000  # pixels; Chromium's pictures are no taller

OVERLAPPING = """
(() => {
  const tight = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return [...range.getClientRects()].filter((box) => box.width > 1 && box.height > 1);
  };
  const texts = [...document.querySelectorAll(
    'h1, h2, h3, p, li, dt, dd, dd small, figcaption, caption, th, td, summary, button, label, svg text')]
    .filter((element) => element.checkVisibility() && element.textContent.trim())
    .filter((element) => !element.closest('.stage'))
    .map((element) => [element, element.closest('svg') ? [element.getBoundingClientRect()] : tight(element)]);
  const meet = (a, b) => a.right - 1 > b.left && b.right - 1 > a.left && a.bottom - 2 > b.top && b.bottom - 2 > a.top;
  const words = (element) => element.textContent.trim().slice(0, 40);
  const pairs = [];
  const flat = texts.flatMap(([element, boxes]) => boxes.map((box) => [element, box]))
    .sort(([, a], [, b]) => a.top - b.top);
  flat.forEach(([one, a], at) => {
    for (let next = at + 1; next < flat.length && flat[next][1].top < a.bottom; next++) {
      const [other, b] = flat[next];
      if (one === other || one.contains(other) || other.contains(one) || !meet(a, b)) continue;
      pairs.push(`${words(one)} / ${words(other)}`);
    }
  });
  return [...new Set(pairs)];
})()"""
CUT = """
[...document.querySelectorAll('h1, h2, h3, p, figure img, figure svg, li, dd, caption, button')]
  .concat([...document.querySelectorAll('.plots > div, .plot th, .heat td')])
  .filter((e) => e.checkVisibility() && !e.closest('.wide table'))
  .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth + 1)
  .filter((e) => getComputedStyle(e).display !== 'inline').map((e) => e.outerHTML.slice(0, 120))"""


def look(page: Page, path: Path, out: Path, width: int, theme: str, height: int | None) -> None:
    """Open a page, take its pictures, and print what overlaps or is cut."""
    media = [{"name": "prefers-color-scheme", "value": theme}]
    page.open(path, width, 900)
    page.call("Emulation.setEmulatedMedia", features=media)
    page.wait_for(
        "[...document.querySelectorAll('.timeline')].every(one => one.dataset.ready || !one.checkVisibility())"
    )
    for fold in ("folded", "open"):
        if fold == "open":
            page.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            page.ask("new Promise(done => setTimeout(done, 1500))")
        page.ask("new Promise(done => setTimeout(done, 400))")
        tall = int(page.ask("document.documentElement.scrollHeight"))
        wide = int(page.ask("document.documentElement.scrollWidth"))
        stem = f"{path.name.removesuffix('.html')}-{width}-{theme}-{fold}"
        _picture(page, out / f"{stem}.png", width, min(tall, height or _TALLEST))
        print(f"{stem}: {tall} px tall, {wide} px wide")
        if wide > width:
            print(f"  wide: the page is {wide - width} px wider than the window")
        for name, expression in (("overlap", OVERLAPPING), ("cut", CUT)):
            for words in page.ask(expression):
                print(f"  {name}: {words}")
    for error in page.errors:
        print(f"  error: {error}")
    page.errors.clear()


def _picture(page: Page, path: Path, width: int, height: int) -> None:
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    picture = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(picture["data"]))


def look_at_pictures(path: Path) -> None:
    """Draw the pictures of a run, and print the pairs of texts whose boxes overlap."""
    run = RunFolder(path)
    for name, kind in (OF_ONE | OF_SEVERAL).items():
        try:
            figure = kind.draw(run if name in OF_ONE else [run])
        except NothingToDrawError:
            continue
        pixels(figure)
        pairs = overlapping_texts(figure)
        print(f"{path.name}, {name}: {len(pairs)} overlaps")
        for one, other in pairs:
            print(f"  overlap: {one} / {other}")


def overlapping_texts(figure: Figure) -> list[tuple[str, str]]:
    """Return the pairs of a drawn figure's texts whose boxes share more than a pixel each way."""
    hidden = set()
    for panel in figure.findobj(Axes):
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-6 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - slack <= tick.get_loc() <= high + slack:
                    hidden |= {tick.label1, tick.label2}
    texts = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            texts.append((text.get_text(), text.get_window_extent()))
    pairs = []
    for place, (one, a) in enumerate(texts):
        for other, b in texts[place + 1 :]:
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            up = min(a.y1, b.y1) - max(a.y0, b.y0)
            if across > 1 and up > 1:
                pairs.append((one, other))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--pictures", action="store_true", help="The arguments are run folders.")
    parser.add_argument("--out", type=Path, default=Path("shots"))
    parser.add_argument("--width", nargs="+", type=int, default=[1400, 390])
    parser.add_argument("--theme", nargs="+", default=["light", "dark"])
    parser.add_argument("--height", type=int, help="Cut pictures to this height (pixels).")
    options = parser.parse_args()
    if options.pictures:
        for path in options.pages:
            look_at_pictures(path)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        for path in options.pages:
            for width in options.width:
                for theme in options.theme:
                    look(page, path, options.out, width, theme, options.height)


if __name__ == "__main__":
    main()
