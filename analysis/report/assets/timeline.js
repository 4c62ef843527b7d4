// One timeline: what part of the run is seen (time in ticks, lanes in CSS pixels), and how the reader moves it.

const SIZES = { top: 32, work: 46, load: 58, gap: 10, axis: 34, right: 10, least: 120, most: 520, lane: 20, thin: 2, band: 4 };
const LEAST_SPAN = 20; // ticks

class Timeline {
  constructor(root, header, columns, palette) {
    this.root = root;
    this.stage = root.querySelector(".stage");
    this.told = root.querySelector(".told");
    this.header = header;
    this.palette = palette;
    this.lanes = new Lanes(header, columns, palette);
    this.curves = {};
    for (const name of ["useful", "wasted", "down", "up", "peer"]) {
      this.curves[name] = new Curve(columns[`${name}_time`], columns[`${name}_value`]);
    }
    this.end = Math.max(1, header.end);
    this.horizon = this.end; // how far one can look: further where several timelines go together
    this.lanesHeight = Math.min(SIZES.most, Math.max(SIZES.least, this.lanes.count * SIZES.lane));
    this.view = { from: 0, span: this.end, height: 1, top: 0 };
    this.tinted = Object.keys(header.groups).length > 0;
    this.pathed = true; // whether the critical path is drawn
    this.selected = null; // {lane, step}; step is -1 where only the lane is
    this.pointer = null;
    this.moved = () => {};
    this.drawing = new Drawing(this);
    this.orderBy("speed");
    bindControls(this);
    new ResizeObserver(() => this.resize()).observe(this.stage);
    this.resize();
    this.see({ height: 0 });
  }

  get fit() { return Math.min(this.lanesHeight / Math.max(1, this.lanes.count), 26); }
  get width() { return Math.max(50, this.stage.clientWidth - this.gutter - SIZES.right); }
  get gutter() { return this.stage.clientWidth < 640 ? 44 : 118; }
  get scale() { return this.width / this.view.span; } // CSS pixels a tick
  /** How much time a pixel has (s): no time is told more finely. */
  get grain() { return this.seconds(1 / this.scale); }
  seconds(ticks) { return ticks * this.header.tick; }
  x(time) { return this.gutter + (time - this.view.from) * this.scale; }
  time(x) { return this.view.from + (x - this.gutter) / this.scale; }
  y(row) { return SIZES.top + row * this.view.height - this.view.top; }

  resize() {
    this.drawing.resize();
    this.see({});
  }

  /** Change what is seen, within what there is. */
  see(change) {
    const view = { ...this.view, ...change };
    view.span = Math.min(this.horizon, Math.max(LEAST_SPAN, view.span));
    view.from = Math.min(this.horizon - view.span, Math.max(0, view.from));
    view.height = Math.min(40, Math.max(this.fit, view.height));
    const all = view.height * this.lanes.count;
    view.top = Math.max(0, Math.min(all - this.lanesHeight, view.top));
    this.view = view;
    this.stage.dataset.from = this.seconds(view.from);
    this.stage.dataset.to = this.seconds(view.from + view.span);
    this.stage.dataset.lane = view.height;
    this.drawing.ask(true);
    this.moved(this);
  }

  /** Zoom in time by a factor around a place of the axis (0..1). */
  zoom(factor, place = 0.5) {
    const { from, span } = this.view;
    const next = Math.min(this.horizon, Math.max(LEAST_SPAN, span * factor));
    this.see({ from: from + (span - next) * place, span: next });
  }

  /** Make lanes taller or flatter around a height of the stage (CSS pixels). */
  stretch(factor, y = SIZES.top + this.lanesHeight / 2) {
    const row = (y - SIZES.top + this.view.top) / this.view.height;
    const height = Math.min(40, Math.max(this.fit, this.view.height * factor));
    this.see({ height, top: row * height - (y - SIZES.top) });
  }

  pan(share) { this.see({ from: this.view.from + share * this.view.span }); }
  scroll(pixels) { this.see({ top: this.view.top + pixels }); }
  whole() { this.see({ from: 0, span: this.horizon, height: 0, top: 0 }); }

  orderBy(kind) {
    const { lanes } = this;
    const begin = (lane) => (lanes.first[lane] < lanes.first[lane + 1] ? lanes.start[lanes.first[lane]] : Infinity);
    const keys = {
      speed: (lane) => -lanes.speed[lane],
      number: (lane) => lane,
      first: begin,
      group: (lane) => (lanes.last_group[lane] < 0 ? Infinity : lanes.last_group[lane]),
    };
    const key = Float64Array.from({ length: lanes.count }, (_, lane) => keys[kind](lane));
    const order = (a, b) => (key[a] === key[b] ? a - b : key[a] - key[b]);
    this.rows = Uint32Array.from({ length: lanes.count }, (_, lane) => lane).sort(order);
    this.rowOf = new Uint32Array(lanes.count);
    this.rows.forEach((lane, row) => { this.rowOf[lane] = row; });
    this.drawing.ask(true);
  }

  /** Bring a device's lane to the middle, tall enough to be read. Answers whether it has one. */
  find(device) {
    const lane = this.lanes.place.get(device);
    if (lane === undefined) {
      const { population } = this.header;
      this.miss("device", device >= population ? `There is no device ${device}: they go from 0 to ${population - 1}.`
        : `Device ${device} has no lane here: of ${showCount(population)} devices only some are shown.`);
      return false;
    }
    const height = Math.max(this.view.height, 18);
    const { first } = this.lanes, next = this.lanes.after(lane, this.view.from);
    const works = next < first[lane + 1] && this.lanes.start[next] < this.view.from + this.view.span;
    const where = works || first[lane] === first[lane + 1] ? {} : { from: 0, span: this.end };
    this.see({ ...where, height, top: (this.rowOf[lane] + 0.5) * height - this.lanesHeight / 2 });
    this.select(lane, -1);
    return true;
  }

  /** Show the time of a round, with a little around it. Answers whether there is such a round. */
  showRound(number) {
    const { round_number: numbers, round_end: ends } = this.lanes, { round_word: word } = this.header;
    const at = numbers.indexOf(number);
    if (at < 0) {
      this.miss("round", numbers.length ? `There is no ${word} ${number}: they go from ${numbers[0]} to ${numbers[numbers.length - 1]}.` : `This run has no ${word}s.`);
      return false;
    }
    const begin = at ? ends[at - 1] : 0, span = Math.max(LEAST_SPAN, ends[at] - begin);
    this.see({ from: begin - 0.1 * span, span: 1.2 * span });
    this.say(describeRound(this, at).join(", "));
    return true;
  }

  select(lane, step) {
    this.selected = { lane, step };
    this.say((step < 0 ? describeLane(this, lane) : describeStep(this, lane, step)).join(". ") + ".");
    this.drawing.ask(false);
  }

  /** Select the next or the previous step of the selected device, and see to it that it is seen. */
  walk(by) {
    if (!this.selected) return;
    const { lane, step } = this.selected, { first, start, end } = this.lanes;
    if (first[lane] === first[lane + 1]) return;
    const near = this.lanes.after(lane, this.view.from);
    const wanted = step < 0 ? (by > 0 ? near : near - 1) : step + by;
    const next = Math.min(first[lane + 1] - 1, Math.max(first[lane], wanted));
    const { from, span } = this.view, length = end[next] - start[next];
    if (start[next] < from || end[next] > from + span) {
      const wide = Math.max(span, 1.2 * length);
      this.see({ span: wide, from: (start[next] + end[next]) / 2 - wide / 2 });
    }
    this.select(lane, next);
  }

  say(text) {
    this.told.textContent = text;
  }

  /** What is wrong with what was looked for, beside its field: "device" or "round". */
  miss(name, text) {
    this.root.querySelector(`form[data-find=${name}] .missed`).textContent = text;
  }

  /** What lies under a point of the stage: {lane, step} with -1 for no step, {round}, or null. */
  under({ x, y }) {
    const time = this.time(x);
    if (x < this.gutter || time > this.end) return null;
    const inLanes = y - SIZES.top;
    if (inLanes < 0) {
      const at = this.lanes.round_end.findIndex((end) => end >= time);
      return at < 0 ? null : { round: at };
    }
    if (inLanes >= this.lanesHeight) return { curves: time };
    const row = Math.floor((inLanes + this.view.top) / this.view.height);
    const near = Math.ceil(1 / this.view.height), slack = 2 / this.scale;
    for (const off of [0, ...Array.from({ length: near }, (_, k) => [k + 1, -k - 1]).flat()]) { // thin lanes share a pixel
      if (off && this.view.height >= 4) break;
      const lane = this.rows[row + off];
      if (lane === undefined) continue;
      const step = this.lanes.at(lane, time, slack);
      if (step >= 0) return { lane, step };
    }
    return row < this.rows.length ? { lane: this.rows[row], step: -1 } : null;
  }
}
