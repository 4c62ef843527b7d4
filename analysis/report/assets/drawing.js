// The pictures of a timeline: the lanes as pixels, and over them lines, labels, marks, curves and what the pointer is on.

const INK = "#1c2226", SOFT = "#5b666d", RULE = "#d5dade", DEADLINE = "#D55E00", LIMIT = "#D55E00", ACT = "#CC79A7";
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";

class Drawing {
  constructor(timeline) {
    this.timeline = timeline;
    const { stage } = timeline;
    this.lanes = stage.querySelector("canvas.lanes");
    this.over = stage.querySelector("canvas.over");
    this.hover = stage.querySelector(".hover");
    this.asked = 0; // 1: what lies over the lanes; 2: the lanes too
  }

  resize() {
    const { timeline, lanes, over } = this, { stage } = timeline;
    this.dense = Math.min(2, devicePixelRatio || 1);
    this.height = SIZES.top + timeline.lanesHeight + 2 * SIZES.gap + SIZES.work + SIZES.load + SIZES.axis;
    stage.style.height = `${this.height}px`;
    const place = (canvas, left, top, width, height) => {
      Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
      canvas.width = Math.max(1, Math.round(width * this.dense));
      canvas.height = Math.max(1, Math.round(height * this.dense));
    };
    place(lanes, timeline.gutter, SIZES.top, timeline.width, timeline.lanesHeight);
    place(over, 0, 0, stage.clientWidth, this.height);
    this.image = new ImageData(lanes.width, lanes.height);
  }

  /** Draw at the next frame; the lanes as well, or only what lies over them. */
  ask(lanes) {
    if (!this.asked) requestAnimationFrame(() => this.draw());
    this.asked = Math.max(this.asked, lanes ? 2 : 1);
  }

  draw() {
    const { timeline } = this, begun = performance.now();
    if (this.asked === 2) this.drawLanes();
    this.asked = 0;
    const pen = this.over.getContext("2d");
    pen.setTransform(this.dense, 0, 0, this.dense, 0, 0);
    pen.clearRect(0, 0, this.over.width, this.over.height);
    pen.lineWidth = 1;
    this.drawMessages(pen);
    this.drawRounds(pen);
    if (timeline.pathed) this.drawPath(pen);
    this.drawLimits(pen);
    this.drawMarks(pen);
    this.drawNames(pen);
    drawStrips(pen, timeline, SIZES.top + timeline.lanesHeight + SIZES.gap);
    this.drawAxis(pen);
    this.drawSelected(pen);
    this.drawPointer(pen);
    timeline.stage.dataset.ms = (performance.now() - begun).toFixed(1);
  }

  drawLanes() {
    const { timeline, dense } = this, { view, lanes, rows } = timeline;
    const tall = view.height * dense;
    if (view.height < SIZES.thin) {
      lanes.drawDensity(this.image, rows, {
        from: view.from, scale: timeline.scale * dense, top: view.top * dense, height: tall, band: SIZES.band * dense, tinted: timeline.tinted, least: 1,
      });
      this.lanes.getContext("2d").putImageData(this.image, 0, 0);
      return;
    }
    lanes.draw(this.image, rows, {
      from: view.from, scale: timeline.scale * dense, top: view.top * dense, height: tall,
      gap: view.height >= 4 ? Math.round(dense * (view.height >= 12 ? 2 : 1)) : 0,
      hatched: view.height >= 6 ? Math.round(6 * dense) : 0, tinted: timeline.tinted, least: 1,
    });
    this.lanes.getContext("2d").putImageData(this.image, 0, 0);
  }

  /** Round ends, deadlines and acts of processes through the lanes, of many only some, and the rounds' numbers above. */
  drawRounds(pen) {
    const { timeline } = this, { lanes, view } = timeline, { round_end: ends, round_deadline: deadlines, round_number: numbers } = lanes;
    const low = lowerBound(ends, view.from), high = lowerBound(ends, view.from + view.span);
    const step = everyNth(high - low + 1, Math.max(4, timeline.width / 22));
    const bottom = SIZES.top + timeline.lanesHeight;
    const rule = (time, look) => {
      const x = Math.round(timeline.x(time)) + 0.5;
      pen.setLineDash(look.dash);
      pen.strokeStyle = look.colour;
      pen.beginPath();
      pen.moveTo(x, SIZES.top - 4);
      pen.lineTo(x, bottom);
      pen.stroke();
    };
    const { act } = lanes, first = lowerBound(act, view.from), last = lowerBound(act, view.from + view.span);
    const some = everyNth(last - first + 1, Math.max(4, timeline.width / 22));
    for (let at = first; at < last; at += some) rule(act[at], { dash: [1, 3], colour: ACT });
    for (let at = low; at <= Math.min(high, ends.length - 1); at++) {
      if (numbers[at] % step) continue;
      if (at < high) rule(ends[at], { dash: [], colour: "rgba(40,48,54,0.75)" });
      if (deadlines[at]) rule(deadlines[at], { dash: [5, 4], colour: DEADLINE }); // over the end, where they are the same
    }
    pen.setLineDash([]);
    pen.font = SMALL;
    pen.fillStyle = SOFT;
    pen.textAlign = "center";
    pen.textBaseline = "alphabetic";
    const every = everyNth(high - low + 1, timeline.width / 34);
    const word = timeline.header.round_word, wide = ends.length ? pen.measureText(word).width : 0;
    let free = Math.max(timeline.gutter, wide + 4); // from here on no number stands yet
    for (let at = low; at <= Math.min(high, ends.length - 1); at++) {
      if (numbers[at] % every) continue;
      const left = Math.max(view.from, at ? ends[at - 1] : 0), right = Math.min(view.from + view.span, ends[at]);
      const x = timeline.x((left + right) / 2), half = pen.measureText(String(numbers[at])).width / 2 + 4;
      if (x - half < free) continue;
      pen.fillText(String(numbers[at]), x, SIZES.top - 9);
      free = x + half;
    }
    pen.textAlign = "right";
    if (ends.length) pen.fillText(word, Math.max(timeline.gutter - 8, wide), SIZES.top - 9);
  }

  /** The critical path: a line through each step that its round waited for, from lane to lane where one follows another. */
  drawPath(pen) {
    const { timeline } = this, { lanes, view } = timeline, { path_lane: own, path_start: starts, path_end: ends } = lanes;
    const low = lowerBound(ends, view.from), high = lowerBound(starts, view.from + view.span);
    const x = (time) => Math.min(timeline.gutter + timeline.width, Math.max(timeline.gutter, timeline.x(time)));
    const isCrowded = high - low > timeline.width / 4; // then the lines between lanes would hide them
    pen.save();
    pen.beginPath();
    pen.rect(timeline.gutter, SIZES.top, timeline.width, timeline.lanesHeight);
    pen.clip();
    pen.beginPath();
    for (let at = low, before = -1; at < high; before = own[at], at++) {
      if (own[at] < 0) continue;
      const y = timeline.y(timeline.rowOf[own[at]] + 0.5);
      if (before < 0 || (isCrowded && before !== own[at])) pen.moveTo(x(starts[at]), y); else pen.lineTo(x(starts[at]), y);
      pen.lineTo(x(ends[at]), y);
    }
    for (const [colour, width] of [["#ffffff", 4], ["#000000", 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.stroke();
    }
    pen.restore();
  }

  /** Messages between devices in both their lanes, if lanes are tall enough: sent ones above received ones, in the lower half. */
  drawMessages(pen) {
    const { timeline } = this, { lanes, view, rows, palette } = timeline;
    const { message_lane: own, message_start: starts, message_end: ends, message_sent: sent } = lanes;
    if (!own.length || view.height < 5) return;
    const tall = Math.max(2, Math.round(view.height / 5)), until = view.from + view.span;
    const firstRow = Math.max(0, Math.floor(view.top / view.height)), lastRow = Math.ceil((view.top + timeline.lanesHeight) / view.height);
    pen.save();
    pen.beginPath();
    pen.rect(timeline.gutter, SIZES.top, timeline.width, timeline.lanesHeight);
    pen.clip();
    for (let row = firstRow; row < Math.min(lastRow, rows.length); row++) {
      const lane = rows[row], foot = timeline.y(row) + view.height - 1;
      for (let at = lowerBound(own, lane); at < own.length && own[at] === lane; at++) {
        if (ends[at] < view.from || starts[at] > until) continue;
        const left = timeline.x(starts[at]), wide = Math.max(1.5, timeline.x(ends[at]) - left);
        const y = foot - tall * (sent[at] ? 2 : 1) - (sent[at] ? 1 : 0);
        pen.fillStyle = "#ffffff";
        pen.fillRect(left, y - 1, wide, tall + 1);
        pen.fillStyle = sent[at] ? palette.steps.upload : palette.steps.download;
        pen.fillRect(left, y, wide, tall);
      }
    }
    pen.restore();
  }

  /** The ends of T, each a line through the lane of its device, if lanes are tall enough for them. */
  drawLimits(pen) {
    const { timeline } = this, { lanes, view, rows } = timeline, { limit_lane: own, limit_time: times } = lanes;
    if (!own.length || view.height < 5) return;
    const until = view.from + view.span;
    const firstRow = Math.floor(view.top / view.height), lastRow = Math.ceil((view.top + timeline.lanesHeight) / view.height);
    pen.save();
    pen.beginPath();
    pen.rect(timeline.gutter, SIZES.top, timeline.width, timeline.lanesHeight);
    pen.clip();
    pen.beginPath();
    for (let row = firstRow; row < Math.min(lastRow, rows.length); row++) {
      const lane = rows[row], y = timeline.y(row);
      for (let at = lowerBound(own, lane); at < own.length && own[at] === lane; at++) {
        if (times[at] < view.from || times[at] > until) continue;
        pen.moveTo(timeline.x(times[at]), y);
        pen.lineTo(timeline.x(times[at]), y + view.height);
      }
    }
    for (const [colour, width] of [["#ffffff", 4], [LIMIT, 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.stroke();
    }
    pen.restore();
  }

  /** Marks where tasks ended early and where something happened to a device, if lanes are tall enough for them. */
  drawMarks(pen) {
    const { timeline } = this, { lanes, view, rows } = timeline;
    if (view.height < 5) return;
    const half = Math.min(5, view.height * 0.32), until = view.from + view.span;
    const firstRow = Math.floor(view.top / view.height), lastRow = Math.ceil((view.top + timeline.lanesHeight) / view.height);
    pen.save();
    pen.beginPath();
    pen.rect(timeline.gutter - half, SIZES.top - half, timeline.width + 2 * half, timeline.lanesHeight + 2 * half);
    pen.clip();
    for (let row = firstRow; row < Math.min(lastRow, rows.length); row++) {
      const lane = rows[row], y = timeline.y(row) + view.height / 2;
      for (let i = lanes.after(lane, view.from - 1); i < lanes.first[lane + 1] && lanes.end[i] <= until; i++) {
        const outcome = lanes.outcome[i];
        const mark = { 2: "lost", 3: "left", 6: "battery" }[outcome];
        if (mark && lanes.isLast(i, lane)) drawMark(pen, mark, timeline.x(lanes.end[i]), y, half);
      }
      for (let at = lowerBound(lanes.mark_lane, lane); at < lanes.mark_lane.length && lanes.mark_lane[at] === lane; at++) {
        const time = lanes.mark_time[at];
        if (time >= view.from && time <= until) drawMark(pen, MARK_NAMES[lanes.mark_kind[at]], timeline.x(time), y, half);
      }
    }
    pen.restore();
  }

  /** The lanes' names: all of tall lanes, some of thin ones. */
  drawNames(pen) {
    const { timeline } = this, { lanes, view, rows } = timeline;
    const step = everyNth(rows.length, Math.max(1, (rows.length * view.height) / 15));
    const wide = timeline.gutter > 60;
    pen.font = view.height < 13 && step === 1 ? "10px system-ui, sans-serif" : SMALL;
    pen.fillStyle = INK;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(0, SIZES.top - 7, timeline.gutter, timeline.lanesHeight + 14);
    pen.clip();
    const last = Math.min(rows.length, Math.ceil((view.top + timeline.lanesHeight) / view.height));
    for (let row = Math.max(0, Math.floor(view.top / view.height)); row < last; row++) {
      if (row % step) continue;
      const lane = rows[row];
      const speed = Number.isFinite(lanes.speed[lane]) ? `  ${Number(lanes.speed[lane].toPrecision(3))}/s` : "";
      pen.fillText(wide ? `${lanes.device[lane]}${speed}` : String(lanes.device[lane]), timeline.gutter - 8, timeline.y(row) + view.height / 2);
    }
    pen.restore();
  }

  drawAxis(pen) {
    const { timeline, height } = this, { view } = timeline;
    const [unit, name] = timeUnit(timeline.seconds(view.span));
    const from = timeline.seconds(view.from) / unit, to = timeline.seconds(view.from + view.span) / unit;
    const { step, places } = niceTicks(from, to, timeline.width / 90);
    const y = height - SIZES.axis + 0.5;
    pen.strokeStyle = SOFT;
    pen.beginPath();
    pen.moveTo(timeline.gutter, y);
    pen.lineTo(timeline.gutter + timeline.width, y);
    for (const place of places) {
      const x = Math.round(timeline.x((place * unit) / timeline.header.tick)) + 0.5;
      pen.moveTo(x, y);
      pen.lineTo(x, y + 4);
    }
    pen.stroke();
    pen.font = SMALL;
    pen.fillStyle = INK;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    for (const place of places) pen.fillText(place.toFixed(digits), timeline.x((place * unit) / timeline.header.tick), y + 6);
    pen.fillStyle = SOFT;
    pen.fillText(`${timeline.header.clock} (${name})`, timeline.gutter + timeline.width / 2, y + 20);
  }

  drawSelected(pen) {
    const { timeline } = this, { selected, view, lanes } = timeline;
    if (!selected) return;
    const y = timeline.y(timeline.rowOf[selected.lane]);
    if (y + view.height < SIZES.top || y > SIZES.top + timeline.lanesHeight) return;
    pen.strokeStyle = INK;
    pen.strokeRect(timeline.gutter - 0.5, y - 0.5, timeline.width + 1, Math.max(2, view.height));
    if (selected.step < 0) return;
    this.frame(pen, selected.step, y);
  }

  frame(pen, step, y) {
    const { timeline } = this, { lanes, view } = timeline;
    const left = Math.max(timeline.gutter - 2, timeline.x(lanes.start[step])), right = Math.min(timeline.gutter + timeline.width + 2, timeline.x(lanes.end[step]));
    if (right < timeline.gutter || left > timeline.gutter + timeline.width) return;
    const wide = Math.max(4, right - left), tall = Math.max(4, view.height);
    pen.strokeStyle = "#ffffff";
    pen.lineWidth = 4;
    pen.strokeRect(left, y - 0.5, wide, tall);
    pen.strokeStyle = "#000000";
    pen.lineWidth = 2;
    pen.strokeRect(left, y - 0.5, wide, tall);
    pen.lineWidth = 1;
  }

  /** A line at the pointer, a frame around the step that it is on, and what there is to say. */
  drawPointer(pen) {
    const { timeline, hover } = this, { pointer } = timeline;
    const found = pointer && timeline.under(pointer);
    hover.hidden = !found;
    if (!found) return;
    pen.strokeStyle = "rgba(28,34,38,0.35)";
    pen.beginPath();
    pen.moveTo(Math.round(pointer.x) + 0.5, SIZES.top);
    pen.lineTo(Math.round(pointer.x) + 0.5, this.height - SIZES.axis);
    pen.stroke();
    let lines;
    if ("round" in found) lines = describeRound(timeline, found.round);
    else if ("curves" in found) lines = describeCurves(timeline, found.curves);
    else {
      if (found.step >= 0) this.frame(pen, found.step, timeline.y(timeline.rowOf[found.lane]));
      const time = timeline.time(pointer.x), group = timeline.lanes.groupAt(found.lane, time);
      const at = `at ${showTime(timeline.seconds(time), timeline.grain)}: ${describeIdle(timeline, found.lane, time)}`;
      lines = found.step >= 0 ? describeStep(timeline, found.lane, found.step)
        : [...describeLane(timeline, found.lane), `${at}${group >= 0 ? `, in group ${group}` : ""}`];
      lines = [...lines, ...describeMessages(timeline, found.lane, time), ...this.marksNear(found.lane, pointer.x)];
    }
    hover.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    const { clientWidth: wide, clientHeight: tall } = timeline.stage;
    const left = pointer.x + 16 + hover.offsetWidth > wide ? pointer.x - 12 - hover.offsetWidth : pointer.x + 16;
    hover.style.left = `${Math.max(0, left)}px`;
    hover.style.top = `${Math.max(0, Math.min(tall - hover.offsetHeight, pointer.y + 14))}px`;
  }

  marksNear(lane, x) {
    const { timeline } = this, { mark_lane: marked, mark_time: times, limit_lane: limited, limit_time: limits } = timeline.lanes, found = [];
    if (timeline.view.height < 5) return found;
    for (let at = lowerBound(limited, lane); at < limited.length && limited[at] === lane; at++) {
      if (Math.abs(timeline.x(limits[at]) - x) <= 5) found.push(describeLimit(timeline, at));
    }
    for (let at = lowerBound(marked, lane); at < marked.length && marked[at] === lane; at++) {
      if (Math.abs(timeline.x(times[at]) - x) <= 5) found.push(describeMark(timeline, at));
    }
    return found;
  }
}

/** The first position of an ascending array whose value is not below `value`. */
function lowerBound(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}
