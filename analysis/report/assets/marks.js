// Small signs in the lanes, with a white edge so that they are seen on every colour, and the curves below the lanes.

const MARK_NAMES = ["arrival", "departure", "shift", "noticed", "move", "split"];

function drawMark(pen, name, x, y, half) {
  const line = (...points) => {
    points.forEach(([dx, dy], k) => (k ? pen.lineTo(x + dx * half, y + dy * half) : pen.moveTo(x + dx * half, y + dy * half)));
  };
  const shapes = {
    lost: () => { line([-1, -1], [1, 1]); line([1, -1], [-1, 1]); },
    battery: () => { line([-0.6, -1], [0.6, -1], [0.6, 1], [-0.6, 1], [-0.6, -1]); },
    departure: () => { line([1, -1], [-0.4, 0], [1, 1], [1, -1]); },
    left: () => { line([0, -1], [1, 0], [0, 1], [-1, 0], [0, -1]); },
    arrival: () => { line([-1, -1], [0.4, 0], [-1, 1], [-1, -1]); },
    shift: () => { pen.arc(x, y, half * 0.7, 0, 2 * Math.PI); },
    noticed: () => { pen.arc(x, y, half * 0.7, 0, 2 * Math.PI); },
    split: () => { line([0, -1], [1, 0], [0, 1], [-1, 0], [0, -1]); },
    move: () => { line([0, -1.3], [0, 1.3]); },
  };
  const look = { left: "#CC79A7", shift: "#ffffff", split: "#ffffff" }[name] ?? "#000000";
  const filled = ["left", "arrival", "departure", "shift", "noticed", "split"].includes(name);
  pen.beginPath();
  shapes[name]();
  pen.strokeStyle = "#ffffff";
  pen.lineWidth = Math.max(2.5, half * 0.9);
  pen.stroke();
  pen.strokeStyle = ["left", "split"].includes(name) ? "#CC79A7" : "#000000";
  pen.lineWidth = Math.max(1, half * 0.36);
  if (filled) {
    pen.fillStyle = look;
    pen.fill();
  }
  pen.stroke();
  pen.lineWidth = 1;
}

/** Devices at work, and the load of the server's link: down above the line, up below it. */
function drawStrips(pen, timeline, top) {
  const { curves, view, width, header, gutter, palette } = timeline;
  const columns = Math.round(width), span = [view.from, view.from + view.span, columns];
  const useful = curves.useful.means(...span), wasted = curves.wasted.means(...span);
  const total = useful.map((value, k) => value + wasted[k]);
  const most = Math.max(1, ...total);
  const work = { top, height: SIZES.work }, base = work.top + work.height;
  const area = (low, high, colour) => {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.moveTo(gutter, low(0));
    for (let k = 0; k < columns; k++) { pen.lineTo(gutter + k, high(k)); pen.lineTo(gutter + k + 1, high(k)); }
    for (let k = columns - 1; k >= 0; k--) { pen.lineTo(gutter + k + 1, low(k)); pen.lineTo(gutter + k, low(k)); }
    pen.fill();
  };
  const y = (value) => base - (value / most) * (work.height - 6);
  area(() => base, (k) => y(useful[k]), palette.outcomes.done);
  area((k) => y(useful[k]), (k) => y(total[k]), "#D55E00");
  const over = showLength(timeline.seconds(view.span / columns)); // what a pixel is the mean of
  const peak = (text) => `peak ${text}, mean of ${over}`;
  label(pen, gutter, work.top, work.height, ["devices", "at work"], [peak(showCount(Number(Math.max(...total).toPrecision(3))))], width);
  rule(pen, gutter, base, width);

  const load = { top: base + SIZES.gap, height: SIZES.load };
  if (header.without_server) {
    const rates = curves.peer.means(...span), most = Math.max(0, ...rates), floor = load.top + load.height;
    area(() => floor, (k) => floor - (rates[k] / (most || 1)) * (load.height - 6), palette.steps.upload);
    rule(pen, gutter, floor, width);
    label(pen, gutter, load.top, load.height, ["messages", "of devices"], [peak(showRate(most))], width);
    return;
  }
  const [down, up] = ["down", "up"].map((way) => curves[way].means(...span).map((rate) => Math.min(rate, header.capacity[way] ?? Infinity)));
  const highest = Math.max(0, ...down, ...up), middle = load.top + load.height / 2;
  const size = (value) => (value / (highest || 1)) * (load.height / 2 - 3);
  area(() => middle, (k) => middle - size(down[k]), palette.steps.download);
  area(() => middle, (k) => middle + size(up[k]), palette.steps.upload);
  rule(pen, gutter, middle, width);
  label(pen, gutter, load.top, load.height, ["server's link,", "down, up"], [peak(showRate(highest)), carries(header.capacity)], width);
}

/** What the link could carry. */
function carries(capacity) {
  const limits = ["down", "up"].filter((way) => capacity[way]).map((way) => `${showRate(capacity[way])} ${way}`);
  return limits.length ? `the link carries ${limits.join(", ")}` : "";
}

function rule(pen, x, y, width) {
  pen.strokeStyle = SOFT;
  pen.beginPath();
  pen.moveTo(x, Math.round(y) + 0.5);
  pen.lineTo(x + width, Math.round(y) + 0.5);
  pen.stroke();
}

/** What a strip shows on its left, and inside as many of its facts as there is room for. */
function label(pen, gutter, top, height, words, facts, width) {
  pen.font = SMALL;
  pen.fillStyle = SOFT;
  pen.textBaseline = "middle";
  if (gutter > 60) {
    pen.textAlign = "right";
    words.forEach((word, k) => pen.fillText(word, gutter - 8, top + height / 2 + (k - (words.length - 1) / 2) * 13));
  }
  pen.textAlign = "left";
  pen.font = "10px system-ui, sans-serif";
  let text = gutter > 60 ? "" : words.join(" ");
  for (const fact of facts.filter(Boolean)) {
    const longer = text ? `${text}; ${fact}` : fact;
    if (pen.measureText(longer).width < width - 10) text = longer;
  }
  pen.fillStyle = "rgba(255,255,255,0.8)";
  pen.fillRect(gutter + 2, top - 1, pen.measureText(text).width + 6, 12);
  pen.fillStyle = SOFT;
  pen.fillText(text, gutter + 5, top + 5);
}
