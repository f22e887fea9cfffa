// Several runs laid over each other: their losses by step, and the options in which they differ.
import { call, readJob } from "./api.js";
import { chart } from "./chart.js";
import { chartControls } from "./chart_controls.js";
import { differences, lowestValidation, runNames, unionOfSteps } from "./compare.js";
import { batched, element, isolated, setText, show } from "./dom.js";
import { count, number, oneLine, shortId, visible } from "./format.js";
import { jobBadge, jobLink, section } from "./parts.js";
import { MOST_COMPARED, format } from "./routes.js";
import { THINNED_POINTS, addPoints, pairs, pointOf } from "./series.js";
import { smooth } from "./smoothing.js";
import { jobKind } from "./words.js";

/** New steps of a job that runs are read so often at most, in milliseconds. */
const EVERY = 3_000;
/** Jobs that can be added without looking for them. */
const MOST_OFFERED = 200;
const LONGEST_VALUE = 300;

/** The view of the jobs that an address names. */
export function compareView(app, { ids }) {
  const runs = ids.map((id, place) => ({ id, place: place + 1, job: null, points: [], problem: "", reading: false, timer: 0 }));
  let left = false;
  const heading = element("h1", { tabindex: "-1" }, "Compare");
  const add = element("select", { name: "add", onchange: (event) => goTo([...ids, event.target.value]) });
  const adding = element("label", {}, "Add a job", add);
  const problem = element("p", { class: "notice problem", role: "alert", hidden: true });
  const empty = element("p", { class: "notice quiet" }, ids.length === 0 ? "No job is chosen." : "Reading the jobs …");
  const controls = chartControls(() => draw());
  const charts = element("div", { class: "charts" });
  const training = section("Training", { class: "whole", hidden: true }, controls.node, charts);
  const options = element("table", { class: "compared" });
  const node = element("div", { class: "compare" }, element("div", { class: "head" }, heading, element("div", { class: "filters" }, adding)), problem, empty, training,
    section("Options", { class: "whole", hidden: ids.length === 0 }, element("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Jobs and the options in which they differ" }, options)));
  let drawn = null;

  function goTo(chosen) {
    location.hash = format({ view: "compare", ids: chosen });
  }

  const update = () => {
    if (left) return;
    offer(adding, add, app, ids);
    const known = runs.filter((run) => run.job !== null);
    setText(problem, runs.map((run) => run.problem).filter((text) => text !== "").join(" "));
    show(problem, problem.textContent !== "");
    show(empty, known.length === 0 && problem.hidden);
    fill(options, known, (id) => goTo(ids.filter((other) => other !== id)));
    draw();
  };
  const soon = batched(update);

  function draw() {
    const known = runs.filter((run) => run.points.length > 0);
    show(training, known.length > 0);
    if (known.length === 0) return;
    const key = known.map((run) => run.id).join(" ");
    if (drawn?.key !== key) {
      drawn = { key, ...newCharts(known, controls.zoom) };
      charts.replaceChildren(...drawn.all.map((one) => one.node));
    }
    const points = unionOfSteps(known.map((run) => run.points));
    const steps = controls.update(points.at(-1).step - points[0].step);
    const { part, log, clip } = controls.state;
    drawn.loss.update(points, known.map((run) => smooth(pairs(run.points, "loss"), steps)), { part, log, clip });
    drawn.validation.update(points, known.map((run) => pairs(run.points, "validationLoss")), { part, log, clip });
    drawn.rate.update(points, known.map((run) => pairs(run.points, "learningRate")), { part });
  }

  async function read(run) {
    if (run.reading || left) return;
    run.reading = true;
    try {
      if (run.job === null) run.job = await readJob(run.id);
      const after = run.points.at(-1)?.step ?? 0;
      const { steps } = await call("JobService/ListSteps", { jobId: run.id, afterStep: String(after), maxPoints: THINNED_POINTS });
      run.points = addPoints(run.points, (steps ?? []).map(pointOf));
      run.problem = "";
    } catch (error) {
      if (left || app.isRefused(error)) return;
      run.problem = error.code === "not_found" ? `There is no job ${oneLine(shortId(run.id))}: it may have been deleted.` : error.message;
      if (error.passes) later(run);
    } finally {
      run.reading = false;
    }
    soon();
  }

  function later(run) {
    if (run.timer !== 0) return;
    run.timer = setTimeout(() => {
      run.timer = 0;
      if (!left && app.isShown()) read(run);
    }, EVERY);
  }

  const readAll = () => runs.forEach((run) => read(run));
  new ResizeObserver(() => !left && draw()).observe(training);
  update();
  readAll();
  return {
    node, heading, title: "Compare", update: soon, refreshed: readAll,
    leave() {
      left = true;
      for (const run of runs) clearTimeout(run.timer);
    },
    jobs(jobs) {
      for (const job of jobs) {
        const run = runs.find(({ id }) => id === job.jobId);
        if (!run?.job || Number(job.lastSequence ?? 0) < Number(run.job.lastSequence ?? 0)) continue;
        run.job = { ...job, spec: run.job.spec };
        if (Number(job.step ?? 0) > (run.points.at(-1)?.step ?? 0)) later(run);
      }
      soon();
    },
    deleted(gone) {
      for (const run of runs) if (gone.includes(run.id)) run.problem = `${oneLine(run.job?.name, 60)} was deleted.`;
      soon();
    },
  };
}

// A line of a run looks the same in all charts, and in the table.
function newCharts(known, zoom) {
  const names = runNames(known.map((run) => run.job));
  const lines = (dots) => known.map((run, at) => ({ label: names[at], kind: `run run-${run.place}`, dots }));
  const loss = chart({ title: "Loss, smoothed", height: 330, large: true, lines: lines(false), zoom });
  const validation = chart({ title: "Validation loss", height: 160, lines: lines(true), zoom });
  const rate = chart({ title: "Learning rate", height: 110, lines: lines(false), zoom });
  return { loss, validation, rate, all: [loss, validation, rate] };
}

function offer(label, select, app, ids) {
  const offered = [...app.jobs.values()].filter((job) => job.loss !== undefined && !ids.includes(job.jobId))
    .sort((one, other) => (one.createTime < other.createTime ? 1 : -1)).slice(0, MOST_OFFERED);
  show(label, offered.length > 0 && ids.length < MOST_COMPARED);
  const key = offered.map((job) => job.jobId).join(" ");
  if (select.dataset.shown === key || select === document.activeElement) return;
  select.dataset.shown = key;
  select.replaceChildren(element("option", { value: "" }, "choose …"),
    ...offered.map((job) => element("option", { value: job.jobId }, `${oneLine(job.name, 40)} ${shortId(job.jobId)}`)));
}

// A column for each job, a row for each thing that can be told apart.
function fill(table, runs, remove) {
  const jobs = runs.map((run) => run.job);
  const key = JSON.stringify([runs.map((run) => [run.id, run.job.state, run.job.step, run.points.length])]);
  if (table.dataset.shown === key) return;
  table.dataset.shown = key;
  const heads = runs.map((run) => element("th", { scope: "col" }, element("div", { class: "joined" },
    element("span", { class: `swatch run-${run.place}`, "aria-hidden": "true" }), jobLink(run.id, run.job.name),
    element("button", { type: "button", class: "plain", "aria-label": `Leave out ${oneLine(run.job.name, 60)}`, title: "Leave out", onclick: () => remove(run.id) }, "✕")),
  element("span", { class: "quiet mono" }, shortId(run.id))));
  const row = (label, values) => element("tr", {}, element("th", { scope: "row" }, label), values.map((value) => element("td", {}, value)));
  const lowest = runs.map((run) => lowestValidation(run.points));
  const facts = [
    row("State", jobs.map((job) => jobBadge(job))), row("Kind", jobs.map(jobKind)),
    row("Step", jobs.map((job) => `${count(job.step)} of ${count(job.totalSteps)}`)),
    row("Loss", jobs.map((job) => (job.loss === undefined ? "–" : number(Number(job.loss))))),
    ...(lowest.some((one) => one !== null) ? [row("Lowest validation loss", lowest.map((one) => (one === null ? "–" : `${number(one.validationLoss)} (step ${count(one.step)})`)))] : []),
  ];
  const others = differences(jobs);
  const said = element("tr", {}, element("td", { class: "quiet", colspan: runs.length + 1 }, "Their options are the same."));
  const rows = others.map(({ key: option, values }) => row(isolated(visible(option), { class: "mono" }),
    values.map((value) => (value === null ? "–" : isolated(oneLine(value, LONGEST_VALUE), { class: "mono" })))));
  table.replaceChildren(element("caption", { class: "unseen" }, "Jobs and the options in which they differ"),
    element("thead", {}, element("tr", {}, element("td", {}), heads)),
    element("tbody", {}, facts), element("tbody", {}, rows.length > 0 || runs.length < 2 ? rows : said));
}
