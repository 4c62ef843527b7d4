// The reader's hands: wheel, pointers, keys, buttons and fields of a timeline.

const QUIET_MS = 250; // a wheel that is still scrolling the page goes on doing so when the pointer comes upon a timeline
let pageScrolled = -Infinity;
addEventListener("scroll", () => { pageScrolled = performance.now(); }, { passive: true });

function bindControls(timeline) {
  const { root, stage } = timeline;
  const acts = {
    in: () => timeline.zoom(0.5), out: () => timeline.zoom(2), whole: () => timeline.whole(),
    left: () => timeline.pan(-0.25), right: () => timeline.pan(0.25),
    taller: () => timeline.stretch(1.6), flatter: () => timeline.stretch(1 / 1.6),
  };
  for (const button of root.querySelectorAll("button[data-do]")) button.addEventListener("click", acts[button.dataset.do]);
  root.querySelector("[name=order]").addEventListener("change", (event) => timeline.orderBy(event.target.value));
  for (const [name, flag] of [["tint", "tinted"], ["path", "pathed"]]) {
    root.querySelector(`[name=${name}]`)?.addEventListener("change", (event) => {
      timeline[flag] = event.target.checked;
      timeline.drawing.ask(true);
    });
  }
  for (const [name, act] of [["device", (number) => timeline.find(number)], ["round", (number) => timeline.showRound(number)]]) {
    root.querySelector(`form[data-find=${name}]`).addEventListener("submit", (event) => {
      event.preventDefault();
      const text = event.target.elements[name].value.trim();
      timeline.miss(name, "");
      if (/^\d{1,10}$/.test(text)) act(Number(text));
      else timeline.miss(name, `A ${name} is a whole number, such as 7.`);
    });
  }
  bindPointers(timeline);
  stage.addEventListener("keydown", (event) => onKey(timeline, acts, event));
}

function onKey(timeline, acts, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const lane = timeline.view.height;
  const keys = {
    "+": acts.in, "=": acts.in, "-": acts.out, "_": acts.out, 0: acts.whole,
    ArrowLeft: event.shiftKey ? () => timeline.walk(-1) : acts.left,
    ArrowRight: event.shiftKey ? () => timeline.walk(1) : acts.right,
    ArrowUp: () => timeline.scroll(-Math.max(24, lane)), ArrowDown: () => timeline.scroll(Math.max(24, lane)),
    PageUp: () => timeline.scroll(-timeline.lanesHeight), PageDown: () => timeline.scroll(timeline.lanesHeight),
    Home: () => timeline.see({ from: 0 }), End: () => timeline.see({ from: timeline.horizon }),
    "]": acts.taller, "[": acts.flatter,
    n: () => timeline.walk(1), p: () => timeline.walk(-1),
    "/": () => timeline.root.querySelector("[name=device]").focus(),
    Escape: () => { timeline.selected = null; timeline.say(""); timeline.drawing.ask(false); },
  };
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function bindPointers(timeline) {
  const { stage } = timeline;
  const down = new Map(); // pointers that are pressed, by id
  let dragged = false;
  const place = (event) => {
    const box = stage.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  stage.addEventListener("wheel", (event) => {
    if (performance.now() - pageScrolled < QUIET_MS) return;
    const { x, y } = place(event);
    const wheel = (event.deltaY || event.deltaX) * (event.deltaMode ? 30 : 1);
    const factor = Math.exp(Math.max(-300, Math.min(300, wheel)) * 0.003);
    if (event.shiftKey) timeline.stretch(1 / factor, y);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) timeline.pan(event.deltaX / timeline.width);
    else if (factor > 1 && timeline.view.span >= timeline.horizon) return; // nothing to zoom out of: the page scrolls on
    else timeline.zoom(factor, Math.min(1, Math.max(0, (x - timeline.gutter) / timeline.width)));
    event.preventDefault();
  }, { passive: false });

  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    down.set(event.pointerId, place(event));
    dragged = false;
  });
  stage.addEventListener("pointermove", (event) => {
    const now = place(event), before = down.get(event.pointerId);
    timeline.pointer = event.pointerType === "touch" ? null : now;
    if (!before) return timeline.drawing.ask(false);
    if (!dragged && Math.hypot(now.x - before.x, now.y - before.y) < 4) return undefined;
    if (!dragged) stage.setPointerCapture(event.pointerId);
    dragged = true;
    if (down.size === 2) pinch(timeline, down, event.pointerId, now);
    else timeline.see({
      from: timeline.view.from - (now.x - before.x) / timeline.scale, top: timeline.view.top - (now.y - before.y),
    });
    down.set(event.pointerId, now);
    return undefined;
  });
  const up = (event) => {
    if (down.delete(event.pointerId) && !dragged && event.type === "pointerup") {
      const found = timeline.under(place(event));
      if (found && "lane" in found) timeline.select(found.lane, found.step);
    }
  };
  stage.addEventListener("pointerup", up);
  stage.addEventListener("pointercancel", up);
  stage.addEventListener("pointerleave", () => { timeline.pointer = null; timeline.drawing.ask(false); });
  stage.addEventListener("dblclick", (event) => timeline.zoom(0.4, (place(event).x - timeline.gutter) / timeline.width));
}

/** Two fingers: what lay between them still lies between them. */
function pinch(timeline, down, moving, now) {
  const before = down.get(moving);
  const [, other] = [...down].find(([id]) => id !== moving);
  const was = Math.max(10, Math.abs(before.x - other.x)), is = Math.max(10, Math.abs(now.x - other.x));
  timeline.zoom(was / is, Math.min(1, Math.max(0, (other.x - timeline.gutter) / timeline.width)));
}
