// Scales and paths of charts. All of it is pure.

/** Round numbers from `low` to `high`, about `count` of them, within both. */
export function ticks(low, high, count) {
  if (!(high > low) || !Number.isFinite(high - low)) return Number.isFinite(low) ? [low] : [];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999) ?? 10 * power;
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) {
    found.push(Number((place * step).toPrecision(12)));
  }
  return found;
}

/** The same for a logarithmic axis: 1, 2 and 5 times powers of ten. Where there are hardly any, those of `ticks`. */
export function logTicks(low, high, count) {
  if (!(high > low) || !(low > 0) || !Number.isFinite(high)) return ticks(low, high, count);
  const between = (factors) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const factor of factors) found.push(Number((factor * 10 ** power).toPrecision(12)));
    }
    return found.filter((value) => value >= low && value <= high);
  };
  const all = between([1, 2, 5]);
  if (all.length < 3) return ticks(low, high, count);
  if (all.length <= 2 * count) return all;
  const decades = between([1]);
  const every = Math.ceil(decades.length / Math.max(1, count));
  return decades.filter((_, place) => place % every === 0);
}

/** Fewer values have no outliers. */
const LEAST_CLIPPED = 20;

/**
 * The range of values with a little room, never less than a hundredth of the values: what hardly changes is flat.
 * `log`: of an axis that is logarithmic, on which only positive values have a place. `clip`: values that lie far from
 * all but a few of the others do not count.
 */
export function range(values, { log = false, clip = false } = {}) {
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (known.length === 0) return null;
  const on = log ? known.map(Math.log10) : known;
  const fences = clip && on.length >= LEAST_CLIPPED ? fencesOf(on) : { low: -Infinity, high: Infinity };
  let [low, high] = [Infinity, -Infinity];
  for (const value of on) {
    if (value < fences.low || value > fences.high) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (log) {
    const room = Math.max((high - low) * 0.06, (Math.log10(1.01) - (high - low)) / 2);
    return { low: 10 ** (low - room), high: 10 ** (high + room) };
  }
  const least = Math.max(Math.abs(low), Math.abs(high)) * 0.01 || 1;
  const room = Math.max((high - low) * 0.06, (least - (high - low)) / 2);
  return { low: low >= 0 ? Math.max(0, low - room) : low - room, high: high + room };
}

// 96 of 100 values, and one and a half times as far on both sides.
function fencesOf(values) {
  const sorted = Float64Array.from(values).sort();
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high] = [at(0.02), at(0.98)];
  const far = 1.5 * (high - low);
  return far > 0 ? { low: low - far, high: high + far } : { low: -Infinity, high: Infinity };
}

/** A function that maps [from, to] onto [start, end]. */
export function scale(from, to, start, end) {
  const factor = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * factor;
}

/** The same by the logarithm. */
export function logScale(from, to, start, end) {
  const by = scale(Math.log10(from), Math.log10(to), start, end);
  return (value) => by(Math.log10(value));
}

/** An SVG path through [step, value] pairs. */
export function path(pairs, x, y) {
  return pairs.map(([step, value], place) => `${place === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
}

/** Those of [step, value] pairs that a part of the steps needs: those within, and one on each side, to which lines lead. */
export function within(pairs, { from, to }) {
  let [first, last] = [0, pairs.length];
  while (first < last && pairs[first][0] < from) first += 1;
  while (last > first && pairs[last - 1][0] > to) last -= 1;
  return pairs.slice(Math.max(0, first - 1), last + 1);
}

/** A part of the steps `from` to `to` that somebody chose, in whole steps and never less than one of them; null: all. */
export function zoomed(one, other, { from, to }) {
  const low = Math.max(from, Math.floor(Math.min(one, other)));
  const high = Math.min(to, Math.max(Math.ceil(Math.max(one, other)), low + 1));
  return high <= low || (low <= from && high >= to) ? null : { from: low, to: high };
}
