// The charts of a job that learns: loss, validation loss, learning rate, pace; and their values as a table.
import { chart } from "./chart.js";
import { chartControls } from "./chart_controls.js";
import { element, show } from "./dom.js";
import { count, number } from "./format.js";
import { section } from "./parts.js";
import { addPoints, isThin, pairs, sampled } from "./series.js";
import { smooth } from "./smoothing.js";

const ROWS = 60;

/** The part; `update(model)` draws what is known. `read(from, to)` gets all points of a part of the steps. */
export function chartsPart(read) {
  let model = null;
  // All points of the part that is looked at, where those that are there are thinned.
  let detail = { part: null, points: [] };
  const controls = chartControls(() => {
    if (!model) return;
    update(model);
    look();
  });
  const { zoom } = controls;
  const loss = chart({
    title: "Loss", height: 370, large: true, zoom,
    lines: [{ label: "loss", kind: "raw" }, { label: "smoothed", kind: "smooth", derived: true }],
  });
  const validation = chart({ title: "Validation loss", height: 120, zoom, lines: [{ label: "validation loss", kind: "second", dots: true }] });
  const rate = chart({ title: "Learning rate", height: 100, zoom, lines: [{ label: "rate", kind: "plain" }] });
  const pace = chart({ title: "Steps a second", height: 100, zoom, lines: [{ label: "steps/s", kind: "raw" }, { label: "smoothed", kind: "smooth", derived: true }] });
  const legend = element("div", { class: "legend" }, element("span", { class: "raw" }, "each step"), element("span", {}, "smoothed"));
  const body = element("tbody", {});
  const details = element("details", { ontoggle: () => model && fill(details, body, model) },
    element("summary", {}, "As a table"),
    element("div", { class: "scrolled" }, element("table", {},
      element("caption", { class: "unseen" }, "Steps of the job: those with a validation loss, and others evenly chosen"),
      element("thead", {}, element("tr", {}, ...["Step", "Loss", "Validation loss", "Learning rate", "Steps a second"]
        .map((label) => element("th", { scope: "col", class: "number" }, label)))), body)));
  const node = section("Training", { class: "whole", hidden: true },
    element("div", { class: "line" }, legend, controls.node),
    element("div", { class: "charts" }, loss.node, validation.node, rate.node, pace.node), details);

  async function look() {
    const { part } = controls.state;
    if (part === null || part === detail.part || !isThin(model.points, part)) return;
    detail = { part, points: [] };
    const points = await read(part.from, part.to);
    if (detail.part !== part) return;
    detail.points = points;
    update(model);
  }

  function update(given) {
    model = given;
    show(node, model.points.length > 0);
    if (model.points.length === 0) return;
    const { part, log, clip } = controls.state;
    const points = part !== null && part === detail.part ? addPoints([...model.points], detail.points, Infinity) : model.points;
    const steps = controls.update(points.at(-1).step - points[0].step);
    const epochs = points.filter((point, place) => place > 0 && point.epoch > points[place - 1].epoch).map((point) => point.step);
    const raw = pairs(points, "loss");
    const speeds = pairs(points, "stepsPerSecond");
    loss.update(points, [raw, smooth(raw, steps)], { part, log, clip, epochs });
    validation.update(points, [pairs(points, "validationLoss")], { part, log, clip, epochs });
    rate.update(points, [pairs(points, "learningRate")], { part, epochs });
    pace.update(points, [speeds, smooth(speeds, steps)], { part, clip, epochs });
    node.dataset.points = String(points.length);
    if (details.open) fill(details, body, model);
  }
  // Text in a chart keeps its size: another width is another drawing.
  new ResizeObserver(() => model && update(model)).observe(node);
  return { node, update };
}

function fill(details, body, model) {
  if (!details.open) return;
  const cellOf = (text) => element("td", { class: "number" }, text);
  body.replaceChildren(...sampled(model.points, ROWS).slice().reverse().map((point) => element("tr", {},
    element("th", { scope: "row", class: "number" }, count(point.step)), cellOf(number(point.loss)), cellOf(number(point.validationLoss)),
    cellOf(number(point.learningRate)), cellOf(number(point.stepsPerSecond)))));
}
