"""Pages of reports as a reader sees them: pictures of each, and texts that overlap or are cut.

    python -m tests.benchmarks.pages PAGE.html... --out FOLDER [--width 1400 390] [--theme light dark]

It opens each page in headless Chromium, at each width and in each colour scheme, folded as it opens
and with every fold open. For each it writes a picture of the whole page, and prints the page's
height and the pairs of texts whose boxes overlap, and elements that are wider than their room. Not
part of the tests: it takes some seconds a page, and its pictures are for people to look at.
"""

import argparse
import base64
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", nargs="+", type=int, default=[1400, 390])
    parser.add_argument("--theme", nargs="+", default=["light", "dark"])
    parser.add_argument("--height", type=int, help="Cut pictures to this height (pixels).")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        for path in options.pages:
            for width in options.width:
                for theme in options.theme:
                    look(page, path, options.out, width, theme, options.height)


if __name__ == "__main__":
    main()
