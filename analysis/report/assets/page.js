// The page: makes its timelines, and ties to them what else refers to times and rounds.

async function start() {
  const palette = readBlock("palette");
  const timelines = [];
  for (const root of document.querySelectorAll(".timeline")) {
    try {
      const { header, packed } = readBlock(root.dataset.block);
      root.hidden = false;
      timelines.push(new Timeline(root, header, await unpackColumns(packed), palette));
      root.dataset.ready = "yes";
    } catch (error) {
      root.hidden = true;
      root.insertAdjacentText("beforebegin", `This timeline cannot be shown by this browser (${error.message}).`);
    }
  }
  tieTogether(timelines);
  for (const button of document.querySelectorAll("button[data-round]")) {
    const timeline = timelines.find(({ root }) => root.dataset.block === button.dataset.timeline);
    if (timeline) button.addEventListener("click", () => {
      timeline.showRound(Number(button.dataset.round));
      timeline.root.scrollIntoView({ block: "start" });
      timeline.stage.focus({ preventScroll: true });
    });
  }
}

/** Several timelines show the same span of simulated time, if that is wanted; shorter runs then leave the rest empty. */
function tieTogether(timelines) {
  const box = document.querySelector("[name=together]");
  if (!box) return;
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
  box.addEventListener("change", tie);
  tie();
}

start();
