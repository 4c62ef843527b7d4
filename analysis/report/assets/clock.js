// Times, sizes and ticks of axes, for people.

const TIME_UNITS = [[2 * 86400, 86400, "days"], [2 * 3600, 3600, "h"], [180, 60, "min"], [0, 1, "s"]];
const SIZE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** The unit for an axis of so many seconds: [seconds, name]. */
function timeUnit(span) {
  const [, seconds, name] = TIME_UNITS.find(([least]) => span >= least);
  return [seconds, name];
}

/** A moment, "1 h 02 min" or "3 min 04.25 s": as fine as `grain` (s). */
function showTime(seconds, grain) {
  const digits = Math.min(4, Math.max(0, Math.ceil(-Math.log10(Math.max(grain, 1e-4)))));
  const round = grain >= 60 ? 60 : 10 ** -digits;
  const whole = Math.round(seconds / round) * round;
  if (whole < 60) return `${whole.toFixed(digits)} s`;
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60;
  const words = [];
  if (days) words.push(`${days} d`);
  if (days || hours) words.push(`${hours} h`);
  words.push(`${words.length ? String(minutes).padStart(2, "0") : minutes} min`);
  if (grain < 60) words.push(`${(whole % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, "0")} s`);
  return words.join(" ");
}

/** A length of time, to about three digits. */
function showLength(seconds) {
  return seconds < 59.95 ? `${Number(seconds.toPrecision(3))} s` : showTime(seconds, seconds < 3600 ? 1 : 60);
}

function showCount(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 4 });
}

function showSize(bytes) {
  const [size, name] = SIZE_UNITS.find(([least]) => bytes >= least) ?? [1, "B"];
  return `${Number((bytes / size).toPrecision(3))} ${name}`;
}

/** Network rates are given in bits, as links are. */
function showRate(bytesPerSecond) {
  const bits = 8 * bytesPerSecond;
  const [size, name] = [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]].find(([least]) => bits >= least) ?? [1, "bit/s"];
  return `${Number((bits / size).toPrecision(3))} ${name}`;
}

/** Round places from `from` to `to`, at most about `most` of them: {step, places}. */
function niceTicks(from, to, most) {
  const least = (to - from) / Math.max(1, most);
  if (!(least > 0)) return { step: 1, places: [] };
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * 0.999);
  const places = [];
  for (let k = Math.ceil(from / step); k * step <= to * (1 + 1e-12); k++) places.push(k * step);
  return { step, places };
}

/** Take every so many-th of `count` things to have at most `most`: 1, 2, 5, 10, 20 ... */
function everyNth(count, most) {
  for (let power = 1; ; power *= 10) {
    for (const step of [power, 2 * power, 5 * power]) if (count / step <= most) return step;
  }
}
