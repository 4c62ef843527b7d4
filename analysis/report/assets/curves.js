// Quantities that change at some instants only; a pixel shows its mean, however much happens in it.

class Curve {
  constructor(times, values) {
    this.times = times;
    this.values = values;
    this.area = new Float64Array(times.length); // up to each time
    for (let i = 1; i < times.length; i++) this.area[i] = this.area[i - 1] + values[i - 1] * (times[i] - times[i - 1]);
  }

  /** The position of the last change at or before `time`; -1 before the first. */
  position(time) {
    let low = 0, high = this.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  areaUpTo(time) {
    const i = this.position(time);
    return i < 0 ? 0 : this.area[i] + this.values[i] * (time - this.times[i]);
  }

  /** Means of `count` equal parts from `from` to `to`. */
  means(from, to, count) {
    const means = new Float64Array(count);
    let before = this.areaUpTo(from);
    for (let k = 0; k < count; k++) {
      const until = this.areaUpTo(from + ((to - from) * (k + 1)) / count);
      means[k] = Math.max(0, (until - before) * count / (to - from));
      before = until;
    }
    return means;
  }
}
