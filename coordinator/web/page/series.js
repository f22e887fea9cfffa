// The steps of a job as points of a chart: few, however many steps there are.

/** Points that are kept at most, before they are thinned again. */
export const MOST_POINTS = 4000;
/** What the coordinator is asked for, and what thinning leaves. */
export const THINNED_POINTS = 2000;

/** What a chart needs of a StepReport. */
export function pointOf(report) {
  const stepSeconds = report.stepSeconds ?? 0;
  return {
    step: Number(report.step ?? 0),
    loss: report.skipped ? null : finite(report.loss ?? 0),
    validationLoss: report.validationLoss === undefined ? null : finite(report.validationLoss),
    learningRate: finite(report.learningRate ?? 0),
    stepsPerSecond: stepSeconds > 0 ? 1 / stepSeconds : null,
    epoch: Number(report.epoch ?? 0),
  };
}

// proto3 JSON writes "NaN" and "Infinity" as texts.
function finite(value) {
  const found = Number(value);
  return Number.isFinite(found) ? found : null;
}

/**
 * Points with others added: by step, none twice, thinned once they are too many. The usual case, later steps, costs
 * nothing for those that are there.
 */
export function addPoints(points, added, most = MOST_POINTS, thinned = THINNED_POINTS) {
  let all = points;
  const before = (place) => (place > 0 ? added[place - 1] : points.at(-1))?.step ?? -Infinity;
  const later = added.every((point, place) => point.step > before(place));
  if (later) {
    all.push(...added);
  } else {
    const known = new Set(points.map((point) => point.step));
    const fresh = new Map(added.filter((point) => !known.has(point.step)).map((point) => [point.step, point]));
    all = [...points, ...fresh.values()].sort((one, other) => one.step - other.step);
  }
  return all.length > most ? thin(all, thinned) : all;
}

/**
 * The same steps as the coordinator keeps (ListStepsRequest.max_points): of each of most / 4 equal stretches the one with
 * the lowest loss, the one with the highest, the last with a validation loss, and the last.
 */
export function thin(points, most) {
  if (points.length <= most) return points;
  const first = points[0].step;
  const parts = Math.max(1, Math.floor(most / 4));
  const width = (points.at(-1).step - first + 1) / parts;
  const kept = new Set();
  let part = null;
  const keep = () => {
    if (part) for (const point of [part.lowest, part.highest, part.validated, part.last]) if (point) kept.add(point);
  };
  for (const point of points) {
    const place = Math.floor((point.step - first) / width);
    if (part?.place !== place) {
      keep();
      part = { place, lowest: null, highest: null, validated: null, last: null };
    }
    if (point.loss !== null && (!part.lowest || point.loss < part.lowest.loss)) part.lowest = point;
    if (point.loss !== null && (!part.highest || point.loss > part.highest.loss)) part.highest = point;
    if (point.validationLoss !== null) part.validated = point;
    part.last = point;
  }
  keep();
  return points.filter((point) => kept.has(point));
}

/**
 * Points for a table: the first and the last, those with a validation loss, and others, evenly chosen. Where those with a
 * validation loss are too many, they are evenly chosen, too: evenly chosen steps would miss most of them.
 */
export function sampled(points, most) {
  if (points.length <= most) return points;
  const validated = points.filter((point) => point.validationLoss !== null);
  const chosen = new Set([points[0], points.at(-1), ...evenly(validated, most - 2)]);
  const others = points.filter((point) => !chosen.has(point));
  for (const point of evenly(others, most - chosen.size)) chosen.add(point);
  return points.filter((point) => chosen.has(point));
}

function evenly(points, most) {
  if (points.length <= most) return points;
  if (most < 2) return points.slice(0, Math.max(0, most));
  return Array.from({ length: most }, (_, place) => points[Math.round((place * (points.length - 1)) / (most - 1))]);
}

/** The [step, value] pairs of one field, where it has a value. */
export function pairs(points, key) {
  return points.filter((point) => point[key] !== null).map((point) => [point.step, point[key]]);
}

/** Steps that are read at once to have all of a part. */
export const MOST_DETAIL = 10_000;

/** Whether steps of a part are missing that can be read. */
export function isThin(points, { from, to }) {
  const there = points.filter((point) => point.step >= from && point.step <= to).length;
  const last = Math.min(to, points.at(-1)?.step ?? 0);
  return to - from < MOST_DETAIL && there < last - Math.max(from, points[0]?.step ?? 0) + 1;
}

/** The place of the point whose step is nearest; -1 where there is none. */
export function nearest(points, step) {
  if (points.length === 0) return -1;
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].step < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - points[low - 1].step <= points[low].step - step ? low - 1 : low;
}
