// The table of all jobs.
import { list, now } from "./api.js";
import { batched, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { age, count, dateAndTime, duration, millis, number, oneLine, shortId } from "./format.js";
import { secondsLeft } from "./eta.js";
import { labelsOf, ownerOf, pageOf, selectJobs, valuesOf } from "./jobs.js";
import { cell, jobBadge, jobLink, labels, progressBar, rowHead, setJobBadge, setProgress, table } from "./parts.js";
import { format } from "./routes.js";
import { chosenBar } from "./view_jobs_chosen.js";
import { JOB_STATES, jobKind, tellingReason } from "./words.js";

/** Jobs that the page reads without being asked; the newest. */
const MOST_JOBS = 2000;
const PORTION = 500;
/** Marks in the browser's own measurements when the first rows were there. */
const SHOWN = "rows-shown";

const COLUMNS = [
  { label: "Chosen", narrow: true }, { label: "State", key: "state" }, { label: "Name", key: "name" }, { label: "Kind", key: "kind" },
  { label: "Owner", key: "owner" }, { label: "Progress", key: "progress" }, { label: "Time left" }, { label: "Loss", key: "loss", number: true },
  { label: "Age", key: "age", number: true },
];

/** Reads the newest jobs: first enough for what is seen at once, then the others. Those that are gone are forgotten. */
export async function readJobs(app) {
  const first = await list("JobService/ListJobs", "jobs", { pageSize: 50 }, 50);
  app.addJobs(first.found);
  if (!first.more) return app.onlyJobs(new Set(first.found.map((job) => job.jobId)), false);
  const all = await list("JobService/ListJobs", "jobs", { pageSize: PORTION }, MOST_JOBS);
  app.addJobs(all.found);
  return app.onlyJobs(new Set(all.found.map((job) => job.jobId)), all.more);
}

/** Reads those that were made last: what ended while the stream was opened anew would else not be seen. */
export async function readNewest(app) {
  app.addJobs((await list("JobService/ListJobs", "jobs", { pageSize: 50 }, 50)).found);
}

/** The view. `route.list` says what is chosen; choices become the page's address. */
export function jobsView(app, route) {
  let chosen = route.list;
  const choose = (changes) => {
    chosen = { ...chosen, page: 1, ...changes };
    history.replaceState(null, "", format({ view: "jobs", list: chosen }));
    update();
  };
  const controls = filters(chosen, choose);
  const rows = table("Jobs", COLUMNS, { class: "stacked jobs" });
  let shown = [];
  const chosenOnes = chosenBar(app, () => update());
  const all = element("input", {
    type: "checkbox", "aria-label": "Choose all jobs of this page",
    onchange: (event) => chosenOnes.set(shown.map((job) => job.jobId), event.target.checked),
  });
  rows.heads[0].append(all);
  const actions = { choose: (id, on) => chosenOnes.set([id], on), label: (label) => choose({ q: label }) };
  const turns = sorting(rows.heads, () => chosen.sort, (sort) => choose({ sort }));
  const frame = element("div", { class: "card scrolled" }, rows.node);
  const empty = element("p", { class: "notice quiet", hidden: true });
  const pages = pager((page) => choose({ page }));
  const heading = element("h1", { tabindex: "-1" }, "Jobs");
  const node = element("div", {}, element("div", { class: "head" }, heading, controls.node), chosenOnes.node, frame, empty, pages.node);

  function update() {
    const found = selectJobs(app.jobs.values(), chosen);
    const page = pageOf(found, chosen.page);
    shown = page.rows;
    controls.update(app.jobs.values(), chosen);
    turns();
    keep(rows.body, page.rows, (job) => job.jobId, (job) => makeRow(job, actions), (row, job) => updateRow(row, job, app, actions));
    chosenOnes.update();
    for (const row of rows.body.children) row.firstChild.firstChild.checked = chosenOnes.ids.has(row.dataset.job);
    all.checked = shown.length > 0 && shown.every((job) => chosenOnes.ids.has(job.jobId));
    all.indeterminate = !all.checked && shown.some((job) => chosenOnes.ids.has(job.jobId));
    show(frame, page.rows.length > 0);
    show(empty, page.rows.length === 0);
    setText(empty, emptyText(app));
    pages.update(page, found.length, app);
    if (page.rows.length > 0 && performance.getEntriesByName(SHOWN).length === 0) performance.mark(SHOWN);
  }
  const soon = batched(update);
  update();
  return { node, heading, title: "Jobs", update: soon, jobs: soon, tick: soon, leave() {} };
}

function emptyText(app) {
  if (!app.jobsRead) return "Reading the jobs …";
  return app.jobs.size > 0 ? "No job is like that." : "There are no jobs yet. `ringtune submit JOB.toml` makes one.";
}

function filters(chosen, choose) {
  const search = element("input", {
    type: "search", name: "q", autocomplete: "off", spellcheck: "false", placeholder: "name, id, label",
    oninput: (event) => choose({ q: event.target.value.slice(0, 500) }),
  });
  search.value = chosen.q;
  const state = element("select", { name: "state", onchange: (event) => choose({ state: event.target.value }) },
    element("option", { value: "" }, "all"), element("option", { value: "active" }, "not ended"),
    JOB_STATES.map(([, word]) => element("option", { value: word }, word)));
  state.value = chosen.state;
  const kind = choice("Kind", "kind", "all", chosen.kind, choose);
  const owner = choice("Owner", "owner", "everybody", chosen.owner, choose);
  const node = element("div", { class: "filters", role: "search", "aria-label": "Which jobs" },
    element("label", {}, "Search", search), element("label", {}, "State", state), kind.node, owner.node);
  return {
    node,
    update(jobs, now) {
      const known = [...jobs];
      kind.add(valuesOf(known, jobKind));
      owner.add(valuesOf(known, ownerOf));
      if (document.activeElement !== search && search.value !== now.q) search.value = now.q;
    },
  };
}

// One of the values that jobs have; more come as jobs do.
function choice(label, key, every, chosen, choose) {
  const select = element("select", { name: key, onchange: (event) => choose({ [key]: event.target.value }) }, element("option", { value: "" }, every));
  const known = new Set([""]);
  const add = (values) => {
    for (const value of values.slice(0, 500)) {
      if (known.has(value)) continue;
      known.add(value);
      select.append(element("option", { value }, oneLine(value, 60)));
    }
  };
  if (chosen !== "") add([chosen]);
  select.value = chosen;
  return { node: element("label", {}, label, select), add };
}

/** Makes buttons of the heads that sort; what it returns shows the order. */
function sorting(heads, current, choose) {
  const sorted = heads.filter((head) => head.dataset.key);
  for (const head of sorted) {
    const { key } = head.dataset;
    const turn = () => choose(current() === `-${key}` ? key : (current() === key || key === "age" ? `-${key}` : key));
    head.replaceChildren(element("button", { type: "button", onclick: turn }, head.textContent, " ",
      element("span", { class: "turn", "aria-hidden": "true" })));
  }
  return () => {
    for (const head of sorted) {
      const on = current().replace("-", "") === head.dataset.key;
      // The newest first is what counts as downwards of an age, too: by the time of creation.
      setAttribute(head, "aria-sort", on ? (current().startsWith("-") ? "descending" : "ascending") : null);
      setText(head.querySelector(".turn"), on ? (current().startsWith("-") ? "▾" : "▴") : "");
    }
  };
}

function makeRow(job, { choose, label }) {
  const link = jobLink(job.jobId, job.name);
  const box = element("input", { type: "checkbox", "aria-label": `Choose ${oneLine(job.name, 60)}`, onchange: (event) => choose(job.jobId, event.target.checked) });
  return element("tr", { role: "row", "data-job": job.jobId },
    cell("", { class: "choose" }, box), cell("", { class: "short" }, jobBadge(job)),
    rowHead({ class: "name wide" }, element("div", { class: "joined" }, link, element("span", { class: "quiet mono" }, shortId(job.jobId))),
      element("div", { class: "labels" }, labels(labelsOf(job), label)), element("div", { class: "why" })),
    cell("", { class: "brief kind" }), cell("owner", { class: "name" }, element("span", { class: "clipped" }, isolated(""))),
    cell("", { class: "wide" }, progressBar()), cell("left", { class: "short" }),
    cell("loss", { class: "number" }), cell("age", { class: "number" }));
}

function updateRow(row, job, app) {
  const [, state, name, kind, owner, progress, left, loss, born] = row.children;
  setJobBadge(state.firstChild, job);
  const why = oneLine(tellingReason(job), 400, "");
  setText(name.lastChild, why);
  setAttribute(name.lastChild, "title", why || null);
  setAttribute(name.lastChild, "class", job.state === "JOB_STATE_FAILED" ? "why problem" : "why quiet");
  setKind(kind, job);
  setText(owner.firstChild.firstChild, oneLine(ownerOf(job), 60, ""));
  setAttribute(owner, "data-label", ownerOf(job) === "" ? null : "owner");
  setProgress(progress.firstChild, `Steps of ${oneLine(job.name, 60)}`, Number(job.step ?? 0), Number(job.totalSteps ?? 0));
  const seconds = secondsLeft(app.samples.get(job.jobId), job);
  setText(left, Number.isFinite(seconds) ? duration(seconds) : "");
  setText(loss, job.loss === undefined ? "" : number(Number(job.loss)));
  setText(born, age(now() - millis(job.createTime) / 1000));
  setAttribute(born, "title", dateAndTime(job.createTime));
}

// A verification says of which job, a job of a sweep of which sweep.
function setKind(node, job) {
  const of = job.verification?.jobId;
  const { sweepId, point, points } = job.sweep ?? {};
  const key = `${jobKind(job)} ${of ?? ""} ${sweepId ?? ""}`;
  if (node.dataset.shown === key) return;
  node.dataset.shown = key;
  const sweep = sweepId && element("a", { href: format({ view: "sweep", id: sweepId }) }, `${count(point)} of ${count(points)} in sweep`);
  node.replaceChildren(element("span", { class: of ? "tag" : null }, jobKind(job)), ...(of ? [" of ", jobLink(of, shortId(of))] : []),
    ...(sweep ? [" ", sweep] : []));
}

function pager(choose) {
  const before = element("button", { type: "button" }, "Previous");
  const after = element("button", { type: "button" }, "Next");
  const text = element("span", { role: "status" });
  const node = element("nav", { class: "pages", "aria-label": "Pages of jobs" }, text, before, after);
  let current = 1;
  before.addEventListener("click", () => choose(current - 1));
  after.addEventListener("click", () => choose(current + 1));
  return {
    node,
    update({ page, pages }, found, app) {
      current = page;
      const of = pages > 1 ? `page ${page} of ${pages}, ` : "";
      const more = app.moreJobs ? ` of the newest ${app.jobs.size}: \`ringtune list\` finds older ones` : "";
      setText(text, `${of}${found} ${found === 1 ? "job" : "jobs"}${more}`);
      for (const button of [before, after]) show(button, pages > 1);
      before.disabled = page <= 1;
      after.disabled = page >= pages;
    },
  };
}
