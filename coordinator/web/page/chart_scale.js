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

/** The range of values with a little room, never less than a hundredth of the values: what hardly changes is flat. */
export function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  const least = Math.max(Math.abs(low), Math.abs(high)) * 0.01 || 1;
  const room = Math.max((high - low) * 0.06, (least - (high - low)) / 2);
  return { low: low >= 0 ? Math.max(0, low - room) : low - room, high: high + room };
}

/** A function that maps [from, to] onto [start, end]. */
export function scale(from, to, start, end) {
  const factor = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * factor;
}

/** An SVG path through [step, value] pairs. */
export function path(pairs, x, y) {
  return pairs.map(([step, value], place) => `${place === 0 ? "M" : "L"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
}
