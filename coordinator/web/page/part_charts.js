// The charts of a job that learns: loss, learning rate, pace; and their values as a table.
import { chart } from "./chart.js";
import { element, show, setText } from "./dom.js";
import { count, number } from "./format.js";
import { section } from "./parts.js";
import { sampled } from "./series.js";
import { reach, smooth } from "./smoothing.js";

const ROWS = 60;

/** The part; `update(model)` draws what is known. */
export function chartsPart() {
  let smoothing = 0.45;
  let model = null;
  const loss = chart({
    title: "Loss", height: 270, large: true,
    lines: [
      { key: "loss", label: "loss", kind: "raw" }, { key: "smooth", label: "smoothed", kind: "smooth" },
      { key: "validationLoss", label: "validation", kind: "second", dots: true },
    ],
  });
  const rate = chart({ title: "Learning rate", height: 120, lines: [{ key: "learningRate", label: "rate", kind: "plain" }] });
  const pace = chart({ title: "Steps a second", height: 120, lines: [{ key: "stepsPerSecond", label: "steps/s", kind: "raw" }, { key: "smoothPace", label: "smoothed", kind: "smooth" }] });
  const over = element("output", { class: "quiet", for: "smoothing" });
  const slider = element("input", {
    type: "range", id: "smoothing", min: 0, max: 100, step: 1, value: smoothing * 100,
    oninput: (event) => {
      smoothing = Number(event.target.value) / 100;
      if (model) update(model);
    },
  });
  const validation = element("span", { class: "second", hidden: true }, "validation loss");
  const legend = element("div", { class: "legend" }, element("span", { class: "raw" }, "each step"), element("span", {}, "smoothed"), validation);
  const body = element("tbody", {});
  const details = element("details", { ontoggle: () => model && fill(details, body, model) },
    element("summary", {}, "As a table"),
    element("div", { class: "scrolled" }, element("table", {},
      element("caption", { class: "unseen" }, "Steps of the job, evenly chosen"),
      element("thead", {}, element("tr", {}, ...["Step", "Loss", "Validation loss", "Learning rate", "Steps a second"]
        .map((label) => element("th", { scope: "col", class: "number" }, label)))), body)));
  const node = section("Training", { class: "whole", hidden: true },
    element("div", { class: "line" }, legend, element("span", { class: "slider" }, element("label", { for: "smoothing" }, "Smoothing"), slider, over)),
    element("div", { class: "charts" }, loss.node, rate.node, pace.node), details);

  function update(given) {
    model = given;
    const { points } = model;
    show(node, points.length > 0);
    if (points.length === 0) return;
    const wanted = reach(smoothing, points.at(-1).step - points[0].step);
    const steps = wanted >= 1 ? wanted : 0;
    setText(over, steps > 0 ? `over about ${count(Math.round(steps))} steps` : "none");
    slider.setAttribute("aria-valuetext", over.textContent);
    const raw = pairs(points, "loss");
    const validated = pairs(points, "validationLoss");
    show(validation, validated.length > 0);
    const epochs = points.filter((point, place) => place > 0 && point.epoch > points[place - 1].epoch).map((point) => point.step);
    loss.update(points, [raw, smooth(raw, steps), validated], epochs);
    rate.update(points, [pairs(points, "learningRate")], epochs);
    const speeds = pairs(points, "stepsPerSecond");
    pace.update(points, [speeds, smooth(speeds, steps)], epochs);
    node.dataset.points = String(points.length);
    if (details.open) fill(details, body, model);
  }
  // Text in a chart keeps its size: another width is another drawing.
  new ResizeObserver(() => model && update(model)).observe(node);
  return { node, update };
}

function pairs(points, key) {
  return points.filter((point) => point[key] !== null).map((point) => [point.step, point[key]]);
}

function fill(details, body, model) {
  if (!details.open) return;
  const cellOf = (text) => element("td", { class: "number" }, text);
  body.replaceChildren(...sampled(model.points, ROWS).slice().reverse().map((point) => element("tr", {},
    element("th", { scope: "row", class: "number" }, count(point.step)), cellOf(number(point.loss)), cellOf(number(point.validationLoss)),
    cellOf(number(point.learningRate)), cellOf(number(point.stepsPerSecond)))));
}
