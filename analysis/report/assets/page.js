// The page: makes its timelines when they are first seen, and ties to them what else refers to devices and rounds.

const made = new Map(); // by data block: a timeline, or the promise of one

function start() {
  const palette = readBlock("palette");
  bindFolds();
  bindTables((block) => made.get(block));
  const fold = document.querySelector(".timeline")?.closest("details");
  if (!fold || fold.open) return begin(palette);
  fold.addEventListener("toggle", () => begin(palette), { once: true });
  return undefined;
}

/** Links to a part of the page open it, and so does the address; all parts are open when the page is printed. */
function bindFolds() {
  const reveal = (hash) => {
    const part = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!part) return;
    for (let fold = part.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    part.scrollIntoView();
  };
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => reveal(link.hash));
  addEventListener("hashchange", () => reveal(location.hash));
  addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
  reveal(location.hash);
}

function begin(palette) {
  const fields = ["first", "second"].map((name) => document.querySelector(`[name=${name}-run]`));
  if (!fields[0]) return show([...document.querySelectorAll(".timeline")], palette);
  const choose = () => {
    const wanted = fields.map((field) => field.value);
    for (const part of document.querySelectorAll("[data-run]")) part.hidden = !wanted.includes(part.dataset.run);
    return show([...document.querySelectorAll("[data-run]:not([hidden]) .timeline")], palette);
  };
  for (const field of fields) field.addEventListener("change", choose);
  return choose();
}

/** Draw timelines; those that are seen at the same time are tied together. */
async function show(roots, palette) {
  for (const root of roots) if (!made.has(root.dataset.block)) made.set(root.dataset.block, make(root, palette));
  const timelines = (await Promise.all(roots.map((root) => made.get(root.dataset.block)))).filter(Boolean);
  tieTogether(timelines);
}

async function make(root, palette) {
  try {
    const { header, packed } = readBlock(root.dataset.block);
    root.hidden = false;
    const timeline = new Timeline(root, header, await unpackColumns(packed), palette);
    root.dataset.ready = "yes";
    return timeline;
  } catch (error) {
    root.hidden = true;
    root.insertAdjacentText("beforebegin", `This timeline cannot be shown by this browser (${error.message}).`);
    return null;
  }
}

/** Several timelines show the same span of time, if that is wanted; shorter runs then leave the rest empty. */
function tieTogether(timelines) {
  const box = document.querySelector("[name=together]");
  if (!box || !timelines.length) return;
  const longest = Math.max(...timelines.map((timeline) => timeline.seconds(timeline.end)));
  let busy = false;
  const follow = (moved) => {
    if (busy || !box.checked) return;
    busy = true;
    for (const other of timelines) {
      const ratio = moved.header.tick / other.header.tick;
      if (other !== moved) other.see({ from: moved.view.from * ratio, span: moved.view.span * ratio });
    }
    busy = false;
  };
  const tie = () => {
    for (const timeline of timelines) {
      timeline.horizon = box.checked ? longest / timeline.header.tick : timeline.end;
      timeline.see({ from: 0, span: timeline.horizon });
    }
  };
  for (const timeline of timelines) timeline.moved = follow;
  box.onchange = tie;
  tie();
}

start();
