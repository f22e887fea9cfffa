// One chart: lines over steps, drawn as SVG. A pointer or the arrow keys read the values.
import { path, range, scale, ticks } from "./chart_scale.js";
import { drawn, element, keep, setAttribute, setText, show } from "./dom.js";
import { count, number } from "./format.js";
import { nearest } from "./series.js";

const MARGIN = { left: 52, right: 10, top: 8, bottom: 22 };

/**
 * A chart of `lines`: { key, label, kind, dots }, where `kind` is a class of job.css and `key` names a field of the points.
 * `say(value)` writes a value for the axis and for readers.
 */
export function chart({ title, height, lines, say = number, large = false }) {
  const heading = element("h3", {}, title);
  const grid = drawn("g", {});
  const paths = lines.map(({ kind }) => drawn("path", { class: kind }));
  const dots = drawn("g", {});
  const cursor = drawn("line", { class: "cursor", visibility: "hidden" });
  const svg = drawn("svg", { "aria-hidden": "true", height }, grid, ...paths, dots, cursor);
  const said = element("p", { class: "said" });
  // A slider is what assistive technology knows to move through a range and read each place.
  const field = element("div", { class: "field", role: "slider", tabindex: "0", "aria-label": `${title} by step`, "aria-valuemin": 0 }, svg);
  const node = element("div", { class: `chart${large ? " large" : ""}` }, heading, field, said);
  let points = [];
  let drawnLines = [];
  let at = null;
  let x = () => 0;
  let y = () => 0;

  function update(given, shownLines, epochs = []) {
    points = given;
    drawnLines = shownLines;
    show(node, drawnLines.some((pairs) => pairs.length > 0));
    if (node.hidden) return;
    const width = Math.max(200, field.clientWidth || 600);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const [first, last] = [points[0]?.step ?? 0, points.at(-1)?.step ?? 1];
    const found = range(drawnLines.flatMap((pairs) => pairs.map(([, value]) => value))) ?? { low: 0, high: 1 };
    x = scale(first, Math.max(last, first + 1), MARGIN.left, width - MARGIN.right);
    y = scale(found.low, found.high, height - MARGIN.bottom, MARGIN.top);
    axes(grid, { width, height, x, y, found, steps: [first, Math.max(last, first + 1)], say, epochs });
    drawnLines.forEach((pairs, place) => paths[place].setAttribute("d", path(pairs, x, y)));
    const marked = lines.findIndex((line) => line.dots);
    const few = marked >= 0 && drawnLines[marked].length <= 100 ? drawnLines[marked] : [];
    keep(dots, few, ([step]) => step, () => drawn("circle", { class: "dot", r: 2.5 }), (dot, [step, value]) => {
      setAttribute(dot, "cx", x(step).toFixed(1));
      setAttribute(dot, "cy", y(value).toFixed(1));
    });
    setAttribute(field, "aria-valuemin", first);
    setAttribute(field, "aria-valuemax", last);
    point(at === null ? null : points[nearest(points, at)]?.step);
  }

  function point(step) {
    const place = step === null || step === undefined ? points.length - 1 : nearest(points, step);
    const chosen = points[place];
    if (!chosen) return;
    const values = lines.map((line, which) => {
      const value = drawnLines[which]?.findLast?.(([other]) => other <= chosen.step);
      return value ? `${line.label} ${say(value[1])}${value[0] === chosen.step ? "" : ` (step ${count(value[0])})`}` : null;
    }).filter((text) => text !== null);
    const text = `step ${count(chosen.step)}: ${values.join(" · ")}`;
    setText(said, at === null ? `last ${text}` : text);
    setAttribute(field, "aria-valuenow", chosen.step);
    setAttribute(field, "aria-valuetext", text);
    setAttribute(cursor, "visibility", at === null ? "hidden" : "visible");
    for (const [name, value] of [["x1", x(chosen.step)], ["x2", x(chosen.step)], ["y1", MARGIN.top], ["y2", height - MARGIN.bottom]]) {
      cursor.setAttribute(name, value.toFixed(1));
    }
  }

  const goTo = (step) => {
    at = step;
    point(step);
  };
  field.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const width = Math.max(200, field.clientWidth);
    const back = scale(MARGIN.left, width - MARGIN.right, points[0]?.step ?? 0, points.at(-1)?.step ?? 1);
    const chosen = points[nearest(points, back(event.clientX - box.left))];
    if (chosen) goTo(chosen.step);
  });
  const forget = () => goTo(null);
  field.addEventListener("pointerleave", forget);
  field.addEventListener("blur", forget);
  field.addEventListener("keydown", (event) => {
    const here = at === null ? points.length - 1 : nearest(points, at);
    const far = Math.max(1, Math.round(points.length / 10));
    const places = {
      ArrowLeft: here - 1, ArrowDown: here - 1, ArrowRight: here + 1, ArrowUp: here + 1, PageDown: here - far, PageUp: here + far,
      Home: 0, End: points.length - 1,
    };
    if (!(event.key in places) || points.length === 0) return;
    event.preventDefault();
    goTo(points[Math.min(points.length - 1, Math.max(0, places[event.key]))].step);
  });
  return { node, update };
}

function axes(grid, { width, height, x, y, found, steps, say, epochs }) {
  const marks = [];
  for (const value of ticks(found.low, found.high, height > 150 ? 6 : 4)) {
    const line = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value), class: "grid" };
    marks.push(drawn("line", line), drawn("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, say(value)));
  }
  for (const step of ticks(...steps, Math.max(2, Math.round(width / 90))).filter((value) => Number.isInteger(value))) {
    const anchor = x(step) > width - 40 ? "end" : "middle";
    marks.push(drawn("text", { x: x(step), y: height - 6, "text-anchor": anchor }, count(step)));
  }
  for (const step of epochs) {
    marks.push(drawn("line", { x1: x(step), x2: x(step), y1: MARGIN.top, y2: height - MARGIN.bottom, class: "epoch" }));
  }
  grid.replaceChildren(...marks);
}
