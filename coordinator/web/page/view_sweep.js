// The jobs of a sweep, what differs between them, and which is the best.
import { call } from "./api.js";
import { question } from "./dialogs.js";
import { batched, drawn, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { count, number, oneLine, shortId, visible } from "./format.js";
import { badge, cell, jobLink, rowHead, setBadge, table } from "./parts.js";
import { isOut, ladder, optionsOf, rungsToCome } from "./sweeps.js";
import { hasEnded, jobMark, jobState } from "./words.js";

/** It is read so often while jobs of it go on, in milliseconds. */
const EVERY = 5_000;
const WIDTH = 160;

/** The view. */
export function sweepView(app, { id }) {
  const name = isolated("");
  const heading = element("h1", { tabindex: "-1" }, "Sweep ", name);
  const about = element("p", { class: "reason" });
  const actions = element("div", { class: "actions" });
  const cancel = element("button", { type: "button", hidden: true, onclick: () => ask() }, "Cancel all");
  if (app.may("JobService/CancelSweep")) actions.append(cancel);
  const frame = element("div", { class: "card scrolled", hidden: true });
  const problem = element("p", { class: "notice quiet" }, "Reading the sweep …");
  const node = element("div", {}, element("div", { class: "jobhead" }, element("div", { class: "line" }, heading, actions), about), problem, frame);
  let sweep = null;
  let rows = null;
  let left = false;
  let timer = 0;

  const ask = () => question({
    title: "Cancel all jobs of this sweep?", text: [element("span", {}, isolated(oneLine(sweep.name, 120)), ` · ${shortId(id)}`),
      "Those that have ended stay as they are. What the others have so far is kept."], yes: "Cancel the jobs", danger: true,
    act: async () => {
      await call("JobService/CancelSweep", { sweepId: id });
      await read();
    },
  });
  const read = async () => {
    clearTimeout(timer);
    try {
      ({ sweep } = await call("JobService/GetSweep", { sweepId: id }));
      soon();
    } catch (error) {
      if (app.isRefused(error)) return;
      if (error.code === "not_found") sweep = null;
      show(problem, sweep === null);
      show(frame, sweep !== null);
      setText(problem, error.code === "not_found" ? "There is no such sweep. Its jobs may have been deleted." : error.message);
    }
    const goesOn = sweep === null || (sweep.points ?? []).some((point) => !hasEnded(point.state));
    if (!left && goesOn && app.isShown()) timer = setTimeout(read, EVERY);
  };
  const update = () => {
    if (left || sweep === null) return;
    show(problem, false);
    show(frame, true);
    const points = sweep.points ?? [];
    const options = optionsOf(sweep);
    if (rows === null) {
      rows = pointsTable(options);
      frame.replaceChildren(rows.node);
    }
    setText(name, oneLine(sweep.name, 200));
    document.title = `Sweep ${oneLine(sweep.name, 60)} · Ringtune`;
    const halving = rungsToCome(sweep);
    const going = points.filter((point) => !hasEnded(point.state)).length;
    setText(about, [`${count(points.length)} jobs, ${count(going)} of them not ended`, ...(halving.length > 0 ? [`what goes on: ${halving.join(", ")}`] : [])].join("; "));
    show(cancel, going > 0);
    const { bestJobId, rungs } = sweep;
    keep(rows.body, points, (point) => point.jobId, () => makeRow(options), (row, point) => updateRow(row, point, { options, rungs, best: bestJobId === point.jobId }));
  };
  const soon = batched(update);
  return {
    node, heading, title: "Sweep", update: read, tick: soon, refreshed: read,
    jobs: (jobs) => jobs.some((job) => job.sweep?.sweepId === id) && !timer && read(),
    deleted: read,
    leave() {
      left = true;
      clearTimeout(timer);
    },
  };
}

function pointsTable(options) {
  const own = options.map((option) => ({ label: option, number: true }));
  return table("Jobs of the sweep", [{ label: "Job" }, { label: "State" }, ...own, { label: "Steps" }, { label: "Loss", number: true },
    { label: "Validation loss", number: true }], { class: "stacked points" });
}

function makeRow(options) {
  const bar = drawn("svg", { viewBox: `0 0 ${WIDTH} 18`, width: WIDTH, height: 18, role: "img", class: "ladder" });
  return element("tr", { role: "row" }, rowHead({ class: "name" }), cell("", { class: "short" }, badge()),
    ...options.map((option) => cell(option, { class: "number mono" }, isolated(""))),
    cell("", { class: "wide" }, bar, element("span", { class: "quiet" })), cell("loss", { class: "number" }), cell("validation", { class: "number" }));
}

function updateRow(row, point, { options, rungs, best }) {
  const [job, state] = row.children;
  const own = [...row.children].slice(2, 2 + options.length);
  const [steps, loss, validation] = [...row.children].slice(2 + options.length);
  setAttribute(row, "data-job", point.jobId);
  setAttribute(row, "class", best ? "best" : isOut(point) ? "out" : null);
  if (job.childElementCount === 0) job.append(jobLink(point.jobId, `${count(point.point)} · ${shortId(point.jobId)}`));
  setBadge(state.firstChild, isOut(point) ? "out" : jobState(point.state), jobMark(point.state));
  setAttribute(state, "title", visible(point.stateReason ?? "") || null);
  own.forEach((node, place) => setText(node.firstChild, oneLine(point.settings?.[options[place]], 60, "")));
  drawLadder(steps.firstChild, point, rungs);
  setText(steps.lastChild, ` ${count(point.step)} / ${count(point.totalSteps)}`);
  setText(loss, point.loss === undefined ? "" : number(Number(point.loss)));
  const judged = point.validation;
  setText(validation, judged ? `${number(Number(judged.loss ?? 0))}${best ? " ★ best" : ""}` : "");
  setAttribute(validation, "title", judged ? `after step ${count(judged.step)}` : null);
}

// How far a job is, and the steps after which the worse half ends.
function drawLadder(svg, point, rungs) {
  const { done, rungs: marks } = ladder(point, rungs);
  const key = `${done} ${marks.join(" ")}`;
  if (svg.dataset.shown === key) return;
  svg.dataset.shown = key;
  setAttribute(svg, "aria-label", `${Math.round(100 * done)} % of the steps; ${marks.length} rungs`);
  svg.replaceChildren(drawn("rect", { x: 0, y: 6, width: WIDTH, height: 6, rx: 3, class: "all" }),
    drawn("rect", { x: 0, y: 6, width: (WIDTH * done).toFixed(1), height: 6, rx: 3, class: "done" }),
    ...marks.map((at) => drawn("line", { x1: (WIDTH * at).toFixed(1), x2: (WIDTH * at).toFixed(1), y1: 1, y2: 17, class: "rung" })));
}
