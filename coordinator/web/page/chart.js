// One chart: lines over steps, drawn as SVG. A pointer or the arrow keys read the values; dragging chooses a part of the steps.
import { logScale, logTicks, path, range, scale, ticks, within, zoomed } from "./chart_scale.js";
import { drawn, element, keep, setAttribute, setText, show } from "./dom.js";
import { count, number } from "./format.js";
import { nearest } from "./series.js";

const MARGIN = { left: 52, right: 10, top: 8, bottom: 22 };
/** Pixels that a pointer moves at least before it is dragging. */
const DRAG = 6;

/**
 * A chart of `lines`: { key, label, kind, dots, derived }, where `kind` is a class of job.css, `key` names a field of the points,
 * and what is derived counts for no value. `say(value)` writes a value for the axis and for readers. `zoom(part)` is called when
 * somebody chooses a part of the steps, or, with null, all.
 */
export function chart({ title, height, lines, say = number, large = false, zoom = () => {} }) {
  const beyond = element("span", { class: "quiet" });
  const heading = element("h3", {}, title, " ", beyond);
  const grid = drawn("g", {});
  const paths = lines.map(({ kind }) => drawn("path", { class: kind }));
  const dots = drawn("g", {});
  const cursor = drawn("line", { class: "cursor", visibility: "hidden" });
  const chosen = drawn("rect", { class: "chosen", visibility: "hidden", y: MARGIN.top, height: height - MARGIN.top - MARGIN.bottom });
  // What lies outside is cut off at its edge.
  const inner = drawn("svg", { class: "inner", y: MARGIN.top, height: height - MARGIN.top - MARGIN.bottom, x: MARGIN.left }, ...paths, dots);
  const svg = drawn("svg", { "aria-hidden": "true", height }, grid, inner, chosen, cursor);
  const said = element("p", { class: "said" });
  // A slider is what assistive technology knows to move through a range and read each place.
  const field = element("div", {
    class: "field", role: "slider", tabindex: "0", "aria-label": `${title} by step`, "aria-valuemin": 0,
    "aria-description": "Arrow keys read values, + and - choose a part of the steps, Escape all of them", title: "Drag to choose a part of the steps",
  }, svg);
  const node = element("div", { class: `chart${large ? " large" : ""}` }, heading, field, said);
  let points = [];
  let drawnLines = [];
  let at = null;
  let drag = null;
  let all = { from: 0, to: 1 };
  let seen = all;
  let x = () => 0;

  /** `options`: `part` of the steps, null for all; `log`, `clip` as `range` has them; `epochs`, where a ring was formed anew. */
  function update(given, shownLines, { part = null, log = false, clip = false, epochs = [] } = {}) {
    points = given;
    drawnLines = shownLines;
    show(node, drawnLines.some((pairs) => pairs.length > 0));
    if (node.hidden) return;
    const width = Math.max(200, field.clientWidth || 600);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const first = points[0]?.step ?? 0;
    all = { from: first, to: Math.max(points.at(-1)?.step ?? 1, first + 1) };
    seen = part ?? all;
    const visible = drawnLines.map((pairs) => within(pairs, seen).filter(([, value]) => !log || value > 0));
    const inside = (pairs) => pairs.filter(([step]) => step >= seen.from && step <= seen.to).map(([, value]) => value);
    // Where lines only pass through, those are what there is to see.
    const counted = visible.flatMap(inside);
    const found = range(counted.length > 0 ? counted : visible.flatMap((pairs) => pairs.map(([, value]) => value)), { log, clip }) ?? { low: 0.1, high: 1 };
    x = scale(seen.from, seen.to, MARGIN.left, width - MARGIN.right);
    const y = (log ? logScale : scale)(found.low, found.high, height - MARGIN.bottom, MARGIN.top);
    axes(grid, { width, height, x, y, found, seen, say, log, epochs: epochs.filter((step) => step >= seen.from && step <= seen.to) });
    const box = [MARGIN.left, MARGIN.top, width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    inner.setAttribute("viewBox", box.join(" "));
    inner.setAttribute("width", box[2]);
    visible.forEach((pairs, place) => paths[place].setAttribute("d", path(pairs, x, y)));
    const own = drawnLines.filter((_, place) => !lines[place].derived).flatMap(inside);
    const outside = own.filter((value) => value > found.high || value < found.low || (log && !(value > 0))).length;
    setText(beyond, outside > 0 ? `${count(outside)} ${outside === 1 ? "value lies" : "values lie"} outside` : "");
    const marked = lines.flatMap((line, place) => (line.dots && visible[place].length <= 100 ? visible[place].map((pair) => [place, ...pair]) : []));
    keep(dots, marked, ([place, step]) => `${place} ${step}`, ([place]) => drawn("circle", { class: `dot ${lines[place].kind}`, r: 2.5 }), (dot, [, step, value]) => {
      setAttribute(dot, "cx", x(step).toFixed(1));
      setAttribute(dot, "cy", y(value).toFixed(1));
    });
    setAttribute(field, "aria-valuemin", seen.from);
    setAttribute(field, "aria-valuemax", seen.to);
    point(at === null ? null : points[nearest(points, at)]?.step);
  }

  function point(step) {
    const place = step === null || step === undefined ? nearest(points, seen.to) : nearest(points, step);
    const here = points[place];
    if (!here) return;
    const values = lines.map((line, which) => {
      const value = drawnLines[which]?.findLast?.(([other]) => other <= here.step);
      return value ? `${line.label} ${say(value[1])}${value[0] === here.step ? "" : ` (step ${count(value[0])})`}` : null;
    }).filter((text) => text !== null);
    const text = `step ${count(here.step)}: ${values.join(" · ")}`;
    setText(said, at === null ? `last ${text}` : text);
    setAttribute(field, "aria-valuenow", here.step);
    setAttribute(field, "aria-valuetext", text);
    setAttribute(cursor, "visibility", at === null ? "hidden" : "visible");
    for (const [name, value] of [["x1", x(here.step)], ["x2", x(here.step)], ["y1", MARGIN.top], ["y2", height - MARGIN.bottom]]) {
      cursor.setAttribute(name, value.toFixed(1));
    }
  }

  const goTo = (step) => {
    at = step;
    point(step);
  };
  const forget = () => goTo(null);
  const choose = (part) => {
    at = null;
    zoom(part);
  };

  // The place of a pointer within the lines, and the step that is there.
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    const width = Math.max(200, field.clientWidth);
    const pixel = Math.min(width - MARGIN.right, Math.max(MARGIN.left, event.clientX - box.left));
    return { pixel, step: scale(MARGIN.left, width - MARGIN.right, seen.from, seen.to)(pixel) };
  };
  const endDrag = () => {
    drag = null;
    setAttribute(chosen, "visibility", "hidden");
  };
  field.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    drag = place(event);
    field.setPointerCapture(event.pointerId);
  });
  field.addEventListener("pointermove", (event) => {
    const here = place(event);
    const step = points[nearest(points, here.step)]?.step;
    if (step !== undefined) goTo(step);
    if (drag === null || Math.abs(here.pixel - drag.pixel) < DRAG) return;
    setAttribute(chosen, "visibility", "visible");
    setAttribute(chosen, "x", Math.min(here.pixel, drag.pixel).toFixed(1));
    setAttribute(chosen, "width", Math.abs(here.pixel - drag.pixel).toFixed(1));
  });
  field.addEventListener("pointerup", (event) => {
    const [from, to] = [drag, place(event)];
    endDrag();
    if (from !== null && Math.abs(to.pixel - from.pixel) >= DRAG) choose(zoomed(from.step, to.step, all));
  });
  field.addEventListener("pointercancel", endDrag);
  field.addEventListener("dblclick", () => choose(null));
  field.addEventListener("pointerleave", forget);
  field.addEventListener("blur", forget);
  field.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || points.length === 0) return;
    const [low, high] = [nearest(points, seen.from), nearest(points, seen.to)];
    const here = at === null ? high : nearest(points, at);
    const far = Math.max(1, Math.round((high - low) / 10));
    const places = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageDown: here - far, PageUp: here + far,
      Home: low, End: high,
    };
    const middle = points[here].step;
    const wide = (factor) => zoomed(middle - ((middle - seen.from) * factor), middle + ((seen.to - middle) * factor), all);
    const parts = { "+": () => wide(0.5), "=": () => wide(0.5), "-": () => wide(2), Escape: () => null };
    if (event.key in places) goTo(points[Math.min(high, Math.max(low, places[event.key]))].step);
    else if (event.key in parts) zoom(parts[event.key]());
    else return;
    event.preventDefault();
  });
  return { node, update };
}

function axes(grid, { width, height, x, y, found, seen, say, log, epochs }) {
  const marks = [];
  for (const value of (log ? logTicks : ticks)(found.low, found.high, height > 150 ? 6 : 3)) {
    const line = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value), class: "grid" };
    marks.push(drawn("line", line), drawn("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const step of ticks(seen.from, seen.to, Math.max(2, Math.round(width / 90))).filter((value) => Number.isInteger(value))) {
    const anchor = x(step) > width - 40 ? "end" : "middle";
    marks.push(drawn("text", { x: x(step), y: height - 6, "text-anchor": anchor }, count(step)));
  }
  for (const step of epochs) {
    marks.push(drawn("line", { x1: x(step), x2: x(step), y1: MARGIN.top, y2: height - MARGIN.bottom, class: "epoch" }));
  }
  grid.replaceChildren(...marks);
}
