// Accuracy against time, bytes or rounds: lines that can be hidden and looked at closely. uPlot draws them.

async function bindChart() {
  const root = document.querySelector(".chart");
  if (!root) return;
  const { header, packed } = readBlock(root.dataset.block);
  const columns = await unpackColumns(packed);
  const [stage, said, select] = [".plotted", "output", "select"].map((name) => root.querySelector(name));
  const buttons = [...root.querySelectorAll("[data-line]")];
  const shown = buttons.map((button) => button.getAttribute("aria-pressed") === "true");
  let plot = null;

  /** The data of an axis as uPlot takes them: x, then mean, low and high of each line. */
  const data = (axis) => {
    const count = header.points, x = columns[`x${axis}`];
    const shares = (name, line) => Array.from(columns[`${name}${axis}`].subarray(line * count, (line + 1) * count),
      (value) => (Number.isNaN(value) ? null : value));
    return [Array.from(x), ...header.lines.flatMap((_, line) => ["mean", "low", "high"].map((name) => shares(name, line)))];
  };

  const draw = () => {
    plot?.destroy();
    const axis = Number(select.value), paint = (colour) => ({ stroke: colour, width: 0, points: { show: false } });
    const series = header.lines.flatMap((line, at) => [
      { stroke: line.colour, width: 2, dash: line.dash, show: shown[at], points: { show: false }, alpha: 1 },
      { ...paint("transparent"), show: shown[at] }, { ...paint("transparent"), show: shown[at] },
    ]);
    const bands = header.lines.map((line, at) => ({ series: [3 * at + 3, 3 * at + 2], fill: `${line.colour}1c` }));
    const look = { stroke: "#333", grid: { stroke: "#e4e8ea", width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width: stage.clientWidth, height: Math.max(260, Math.min(420, stage.clientWidth * 0.45)), series: [{}, ...series], bands,
      scales: { x: { time: false } }, legend: { show: false }, focus: { alpha: 0.25 },
      axes: [{ ...look, label: header.axes[axis], labelSize: 24, labelFont: look.font },
        { ...look, label: header.figure, labelSize: 24, labelFont: look.font, size: 46 }],
      cursor: { drag: { x: true, y: false }, points: { show: false }, focus: { prox: 1e6 } },
      hooks: { setCursor: [tell] },
    }, data(axis), stage);
  };

  /** Say what the visible line nearest to the pointer is there. */
  const tell = (u) => {
    const { idx, top } = u.cursor;
    if (idx === null || idx === undefined || top < 0) return focus(-1, "");
    const aim = u.posToVal(top, "y"), share = (line, kind) => u.data[3 * line + 1 + kind][idx];
    const there = header.lines.map((_, at) => at).filter((at) => shown[at] && share(at, 0) !== null);
    if (!there.length) return focus(-1, "");
    const near = there.reduce((a, b) => (Math.abs(share(b, 0) - aim) < Math.abs(share(a, 0) - aim) ? b : a));
    const range = share(near, 1) === share(near, 2) ? "" : ` (seeds ${share(near, 1).toFixed(3)} to ${share(near, 2).toFixed(3)})`;
    return focus(near, `${header.lines[near].name}: ${share(near, 0).toFixed(3)}${range} at ${u.data[0][idx].toPrecision(3)}, ${header.axes[Number(select.value)]}`);
  };

  const focus = (line, text) => {
    said.textContent = text;
    buttons.forEach((button, at) => button.classList.toggle("near", at === line));
  };

  const see = (line, on) => {
    shown[line] = on;
    buttons[line].setAttribute("aria-pressed", on);
    for (const part of [1, 2, 3]) plot.setSeries(3 * line + part, { show: on });
  };

  buttons.forEach((button, line) => {
    button.addEventListener("click", () => see(line, !shown[line]));
    button.addEventListener("mouseenter", () => shown[line] && plot.setSeries(3 * line + 1, { focus: true }));
    button.addEventListener("mouseleave", () => plot.setSeries(null, { focus: false }));
  });
  for (const button of root.querySelectorAll("[data-show]")) {
    const most = Number(button.dataset.show);
    button.addEventListener("click", () => shown.forEach((_, line) => see(line, line < most)));
  }
  select.addEventListener("change", draw);
  new ResizeObserver(() => plot && plot.width !== stage.clientWidth && stage.clientWidth && draw()).observe(stage);
  draw();
  root.dataset.ready = "yes";
}

bindChart();
