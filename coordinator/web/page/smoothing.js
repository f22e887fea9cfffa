// A running mean over steps, for losses that jump.

/** Steps that a smoothing of 0 to 1 looks back over, in a history of `span` steps: up to a quarter of it. */
export function reach(smoothing, span) {
  return Math.max(0, smoothing) ** 2 * Math.max(0, span) * 0.25;
}

/**
 * The exponential mean of [step, value] pairs, corrected for its beginning, where a value counts half as much for each
 * 0.69 * `steps` that it is older. It goes by steps, not by points: thinning a history changes it little.
 */
export function smooth(pairs, steps) {
  if (!(steps > 0)) return pairs;
  let mean = 0;
  let weight = 0;
  let before = null;
  return pairs.map(([step, value]) => {
    const gap = before === null ? 1 : Math.max(1, step - before);
    const keep = Math.exp(-gap / steps);
    before = step;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return [step, mean / weight];
  });
}
