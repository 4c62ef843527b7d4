// Accuracy against time, bytes or rounds: lines that can be hidden and looked at closely. uPlot draws them.

async function bindChart() {
  const root = document.querySelector(".chart");
  if (!root) return;
  const { header, packed } = readBlock(root.dataset.block);
  const columns = await unpackColumns(packed);
  const [stage, said, select, smooth] = [".plotted", "output", "select", "[name=smooth]"].map((name) => root.querySelector(name));
  const buttons = [...root.querySelectorAll("[data-line]")];
  const shown = buttons.map((button) => button.getAttribute("aria-pressed") === "true");
  let plot = null, raw = [], pointed = -1;

  /** The points of an axis as uPlot takes them: x, then mean, low and high of each line. */
  const pointsOf = (axis) => {
    const count = header.points, x = columns[`x${axis}`];
    const values = (name, line) => Array.from(columns[`${name}${axis}`].subarray(line * count, (line + 1) * count),
      (value) => (Number.isNaN(value) ? null : value));
    return [Array.from(x), ...header.lines.flatMap((_, line) => ["mean", "low", "high"].map((name) => values(name, line)))];
  };
  const drawn = () => (smooth.checked ? [raw[0], ...raw.slice(1).map((values) => smoothed(values, header.smoothed))] : raw);

  /** Where the last of the visible lines ends. */
  const end = () => {
    let last = 1;
    shown.forEach((on, line) => { if (on) last = Math.max(last, raw[3 * line + 1].findLastIndex((value) => value !== null)); });
    return shown.some(Boolean) ? raw[0][last] : raw[0][raw[0].length - 1];
  };
  /** Bands hide lines where there are many: a few have theirs, and else the line at the pointer. */
  const hasBand = (line) => shown[line] && (line === pointed || shown.filter(Boolean).length <= header.bands);

  const draw = () => {
    if (!stage.clientWidth) return; // folded
    plot?.destroy();
    const axis = Number(select.value), paint = (colour) => ({ stroke: colour, width: 0, points: { show: false } });
    raw = pointsOf(axis);
    const series = header.lines.flatMap((line, at) => [
      { stroke: line.colour, width: 2, dash: line.dash, show: shown[at], points: { show: false }, alpha: 1 },
      { ...paint("transparent"), show: hasBand(at) }, { ...paint("transparent"), show: hasBand(at) },
    ]);
    const bands = header.lines.map((line, at) => ({ series: [3 * at + 3, 3 * at + 2], fill: `${line.colour}2c` }));
    const look = { stroke: "#333", grid: { stroke: "#e4e8ea", width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    plot = new uPlot({
      width: stage.clientWidth, height: Math.max(260, Math.min(420, stage.clientWidth * 0.45)), series: [{}, ...series], bands,
      scales: { x: { time: false, range: (_, from, to) => [from, Math.min(to, end())] } },
      legend: { show: false }, focus: { alpha: 0.25 }, padding: [12, 12, 0, 0],
      axes: [{ ...look, label: header.axes[axis], labelSize: 24, labelFont: look.font },
        { ...look, label: header.figure, labelSize: 24, labelFont: look.font, size: 46 }],
      cursor: { drag: { x: true, y: false }, points: { show: false }, focus: { prox: 1e6 } },
      hooks: { setCursor: [tell] },
    }, drawn(), stage);
    root.dataset.ready = "yes";
    root.dataset.end = end();
  };

  /** Say what the visible line nearest to the pointer is there: the figures as they were, smoothed or not. */
  const tell = (u) => {
    const { idx, top } = u.cursor;
    if (idx === null || idx === undefined || top < 0) return focus(-1, "");
    const aim = u.posToVal(top, "y"), at = (data, line, kind) => data[3 * line + 1 + kind][idx];
    const there = header.lines.map((_, line) => line).filter((line) => shown[line] && at(u.data, line, 0) !== null);
    if (!there.length) return focus(-1, "");
    const near = there.reduce((a, b) => (Math.abs(at(u.data, b, 0) - aim) < Math.abs(at(u.data, a, 0) - aim) ? b : a));
    const [mean, low, high] = [0, 1, 2].map((kind) => at(raw, near, kind));
    const range = low === high ? "" : ` (seeds ${low.toFixed(3)} to ${high.toFixed(3)})`;
    return focus(near, `${header.lines[near].name}: ${mean.toFixed(3)}${range} at ${u.data[0][idx].toPrecision(3)}, ${header.axes[Number(select.value)]}`);
  };

  const focus = (line, text) => {
    said.textContent = text;
    buttons.forEach((button, at) => button.classList.toggle("near", at === line));
    point(line);
  };

  const point = (line) => {
    if (line === pointed) return;
    const before = pointed;
    pointed = line;
    for (const one of [before, line]) if (one >= 0) band(one);
  };
  const band = (line) => {
    for (const part of [2, 3]) if (plot.series[3 * line + part].show !== hasBand(line)) plot.setSeries(3 * line + part, { show: hasBand(line) });
  };

  /** Show or hide lines; the axis then ends where the last of them does. */
  const see = (wanted) => {
    wanted.forEach((on, line) => {
      shown[line] = on;
      buttons[line].setAttribute("aria-pressed", on);
    });
    draw();
  };

  buttons.forEach((button, line) => {
    button.addEventListener("click", () => see(shown.map((on, at) => (at === line ? !on : on))));
    button.addEventListener("mouseenter", () => {
      if (!plot || !shown[line]) return;
      point(line);
      plot.setSeries(3 * line + 1, { focus: true });
    });
    button.addEventListener("mouseleave", () => {
      if (!plot) return;
      point(-1);
      plot.setSeries(null, { focus: false });
    });
  });
  for (const button of root.querySelectorAll("[data-show]")) {
    const most = Number(button.dataset.show);
    button.addEventListener("click", () => see(shown.map((_, line) => line < most)));
  }
  for (const field of [select, smooth]) field.addEventListener("change", draw);
  new ResizeObserver(() => stage.clientWidth && plot?.width !== stage.clientWidth && draw()).observe(stage);
  draw();
}

/** Each value is the mean of those at most `reach` points from it, and fewer at the ends of a line. */
function smoothed(values, reach) {
  const first = values.findIndex((value) => value !== null), last = values.findLastIndex((value) => value !== null);
  return values.map((value, at) => {
    if (value === null) return null;
    const near = Math.min(reach, at - first, last - at);
    let sum = 0;
    for (let other = at - near; other <= at + near; other++) sum += values[other];
    return sum / (2 * near + 1);
  });
}

bindChart();
