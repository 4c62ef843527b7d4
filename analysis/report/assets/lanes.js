// The lanes' contents, and how they become pixels. Times are in ticks of the run's header; a step is a number.

const IDLE = 1, TINT = 8, AWAY = 120, DONE = 128; // codes of pixels; of several in one pixel the highest is drawn
const MOST_TINTS = 100;
// In the order of style.OUTCOMES: done, late, lost, left, stopped, memory, battery; the more it matters the higher.
const RANK = [0, 2, 4, 3, 1, 5, 6];

class Lanes {
  constructor(header, columns, palette) {
    Object.assign(this, columns);
    this.header = header;
    this.palette = palette;
    this.count = this.device.length;
    this.kinds = header.steps.length;
    this.wasted = DONE + this.kinds; // the codes of wasted steps begin here: as many for each outcome as there are kinds of steps
    this.place = new Map(Array.from(this.device, (device, lane) => [device, lane]));
    this.expand();
    this.colours = this.makeColours();
  }

  /** Distances and differences back into times and numbers. */
  expand() {
    const { gap, length, first, count } = this;
    this.start = new Uint32Array(gap.length);
    this.end = new Uint32Array(gap.length);
    for (const name of ["task", "round", "group"]) {
      const values = this[name];
      for (let lane = 0; lane < count; lane++) {
        for (let i = first[lane] + 1; i < first[lane + 1]; i++) values[i] += values[i - 1];
      }
    }
    this.codes = this.step.map((step, i) => this.code(step, this.outcome[i]));
    for (let lane = 0; lane < count; lane++) {
      let time = 0;
      for (let i = first[lane]; i < first[lane + 1]; i++) {
        this.start[i] = time += gap[i];
        this.end[i] = time += length[i];
      }
    }
  }

  /** The code of the pixels of a step; the rank of a step that was not wasted is 0. */
  code(step, outcome) { return DONE + this.kinds * RANK[outcome] + step; }
  nameOf(i) { return this.header.steps[this.step[i]].name; }
  /** Whether its task ends with this step. */
  isLast(i, lane) { return i + 1 >= this.first[lane + 1] || this.task[i + 1] !== this.task[i]; }

  /** The first step of a lane that ends after `time`; the lane's end if there is none. */
  after(lane, time) {
    let low = this.first[lane], high = this.first[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** The step of a lane at `time`, or the nearest one within `slack` ticks; -1 if there is none. */
  at(lane, time, slack) {
    const next = this.after(lane, time);
    let best = -1, distance = slack;
    for (const i of [next - 1, next]) {
      if (i < this.first[lane] || i >= this.first[lane + 1]) continue;
      const off = Math.max(this.start[i] - time, time - this.end[i], 0);
      if (off <= distance) { best = i; distance = off; }
    }
    return best;
  }

  isAway(lane, time) {
    for (let i = this.off_first[lane]; i < this.off_first[lane + 1]; i++) {
      if (this.off_start[i] <= time && time < this.off_end[i]) return true;
    }
    return false;
  }

  groupAt(lane, time) {
    for (let i = this.stay_first[lane]; i < this.stay_first[lane + 1]; i++) {
      if (this.stay_start[i] <= time && time < this.stay_end[i]) return this.stay_group[i];
    }
    return -1;
  }

  /** Colours of all pixel codes as [red, green, blue]: idle, groups' tints, away, steps, and steps whose work was wasted. */
  makeColours() {
    const { outcomes, idle, away } = this.palette, { steps } = this.header;
    const colours = Array.from({ length: DONE + this.kinds * RANK.length }, () => [255, 255, 255]);
    colours[IDLE] = rgb(idle);
    colours[AWAY] = rgb(away);
    this.tints = new Map();
    Object.keys(this.header.groups).slice(0, MOST_TINTS).forEach((group, k) => {
      colours[TINT + k] = rgb(this.header.groups[group]);
      this.tints.set(Number(group), TINT + k);
    });
    steps.forEach(({ colour }, step) => {
      Object.values(outcomes).forEach((wasted, outcome) => { colours[this.code(step, outcome)] = rgb(outcome ? wasted : colour); });
    });
    this.pale = steps.map(({ colour }) => lighten(rgb(colour), 0.5)); // under hatches
    return colours;
  }

  /** Put a lane's codes into `row` (a pixel each), over what is there; a step is at least `least` pixels wide. */
  fill(row, lane, { from, scale, tinted, least }) {
    const to = from + row.length / scale;
    const x = (time) => Math.round((time - from) * scale);
    put(row, x(this.arrival[lane]), x(this.departure[lane]), IDLE);
    if (tinted) {
      for (let i = this.stay_first[lane]; i < this.stay_first[lane + 1]; i++) {
        const tint = this.tints.get(this.stay_group[i]);
        if (tint !== undefined) put(row, x(this.stay_start[i]), x(this.stay_end[i]), tint);
      }
    }
    for (let i = this.off_first[lane]; i < this.off_first[lane + 1]; i++) {
      if (this.off_start[i] < to && this.off_end[i] > from) put(row, x(this.off_start[i]), x(this.off_end[i]), AWAY);
    }
    const { start, end, codes } = this, last = this.first[lane + 1];
    for (let i = this.after(lane, from); i < last && start[i] < to; i++) {
      const left = Math.round((start[i] - from) * scale), right = Math.round((end[i] - from) * scale);
      put(row, left, right > left + least ? right : left + least, codes[i]);
    }
  }

  /**
   * Draw all lanes of a view into an image (RGBA).
   * rows: lanes from top to bottom; view: from when, and how many pixels a tick (scale); top and height of lanes in pixels; gap, hatched, tinted, least.
   */
  draw(image, rows, view) {
    const { width, height: most } = image;
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0xffffffff);
    const words = Uint32Array.from(this.colours, pack);
    const pale = Uint32Array.from(this.pale, pack);
    const row = new Uint16Array(width), line = new Uint32Array(width);
    const firstRow = Math.max(0, Math.floor(view.top / view.height));
    for (let at = firstRow; at < rows.length;) {
      const y0 = Math.round(at * view.height - view.top);
      if (y0 >= most) break;
      row.fill(0);
      this.fill(row, rows[at], view);
      at++;
      const y1 = Math.round(at * view.height - view.top);
      for (let x = 0; x < width; x++) line[x] = words[row[x]];
      const hatched = view.hatched && row.some((code) => code >= this.wasted);
      for (let y = Math.max(0, y0), end = Math.min(most, y1 - view.gap); y < end; y++) {
        if (hatched) {
          for (let x = 0; x < width; x++) {
            const code = row[x];
            if (code >= this.wasted) line[x] = ((x + y) % view.hatched) * 5 < view.hatched * 2 ? words[code] : pale[(code - DONE) % this.kinds];
          }
        }
        pixels.set(line, y * width);
      }
    }
  }
}

/**
 * Draw all lanes of a view into an image as a density: rows of pixels, `band` pixels tall, each for the lanes that lie in it. A pixel
 * mixes the mean colour of those at work with that of the others; the weight of work is the root of its share, so that little is seen.
 */
Lanes.prototype.drawDensity = function drawDensity(image, rows, view) {
  const { width, height: most } = image;
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0xffffffff);
  const [red, green, blue] = [0, 1, 2].map((part) => Float32Array.from(this.colours, (colour) => colour[part]));
  const row = new Uint16Array(width), line = new Uint32Array(width);
  const [working, r, g, b, idleR, idleG, idleB] = Array.from({ length: 7 }, () => new Float32Array(width));
  for (let y0 = 0; y0 < most; y0 += view.band) {
    const first = Math.floor((y0 + view.top) / view.height), last = Math.min(rows.length, Math.ceil((y0 + view.band + view.top) / view.height));
    const count = last - first;
    if (count <= 0) break;
    for (const sums of [working, r, g, b, idleR, idleG, idleB]) sums.fill(0);
    for (let at = first; at < last; at++) {
      row.fill(0);
      this.fill(row, rows[at], view);
      for (let x = 0; x < width; x++) {
        const code = row[x];
        if (code >= DONE) { working[x]++; r[x] += red[code]; g[x] += green[code]; b[x] += blue[code]; }
        else { idleR[x] += red[code]; idleG[x] += green[code]; idleB[x] += blue[code]; }
      }
    }
    for (let x = 0; x < width; x++) {
      const work = working[x], idle = count - work, weight = Math.sqrt(work / count);
      const mix = (sum, idleSum) => Math.round((work ? (weight * sum) / work : 0) + (idle ? ((1 - weight) * idleSum) / idle : 0));
      line[x] = pack([mix(r[x], idleR[x]), mix(g[x], idleG[x]), mix(b[x], idleB[x])]);
    }
    for (let y = y0, end = Math.min(most, y0 + view.band); y < end; y++) pixels.set(line, y * width);
  }
};

/** Write a code from one pixel to before another, where nothing higher stands. */
function put(row, from, to, code) {
  const end = to < row.length ? to : row.length;
  for (let at = from > 0 ? from : 0; at < end; at++) if (row[at] < code) row[at] = code;
}

function rgb(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

function lighten(colour, share) {
  return colour.map((part) => Math.round(part + (255 - part) * share));
}

/** Red, green, blue as a pixel of an image, whose bytes are in this order on every machine with a browser. */
function pack([red, green, blue]) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}
