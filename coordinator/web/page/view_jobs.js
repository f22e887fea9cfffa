// The table of all jobs.
import { list, now } from "./api.js";
import { batched, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { age, dateAndTime, duration, millis, number, oneLine, shortId } from "./format.js";
import { secondsLeft } from "./eta.js";
import { ownerOf, ownersOf, pageOf, selectJobs } from "./jobs.js";
import { cell, jobBadge, jobLink, progressBar, rowHead, setJobBadge, setProgress, table } from "./parts.js";
import { format } from "./routes.js";
import { JOB_STATES } from "./words.js";

/** Jobs that the page reads without being asked; the newest. */
const MOST_JOBS = 2000;
const PORTION = 500;
/** Marks in the browser's own measurements when the first rows were there. */
const SHOWN = "rows-shown";

const COLUMNS = [
  { label: "State", key: "state" }, { label: "Name", key: "name" }, { label: "Owner", key: "owner" },
  { label: "Progress", key: "progress" }, { label: "Time left" }, { label: "Loss", key: "loss", number: true },
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
  const rows = table("Jobs", COLUMNS, { class: "stacked" });
  const turns = sorting(rows.heads, () => chosen.sort, (sort) => choose({ sort }));
  const frame = element("div", { class: "card scrolled" }, rows.node);
  const empty = element("p", { class: "notice quiet", hidden: true });
  const pages = pager((page) => choose({ page }));
  const heading = element("h1", { tabindex: "-1" }, "Jobs");
  const node = element("div", {}, element("div", { class: "head" }, heading, controls.node), frame, empty, pages.node);

  function update() {
    const found = selectJobs(app.jobs.values(), chosen);
    const page = pageOf(found, chosen.page);
    controls.owners(ownersOf(app.jobs.values()));
    turns();
    keep(rows.body, page.rows, (job) => job.jobId, makeRow, (row, job) => updateRow(row, job, app));
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
    JOB_STATES.filter(([, word]) => word !== "paused").map(([, word]) => element("option", { value: word }, word)));
  state.value = chosen.state;
  const owner = element("select", { name: "owner", onchange: (event) => choose({ owner: event.target.value }) },
    element("option", { value: "" }, "everybody"));
  if (chosen.owner !== "") owner.append(element("option", { value: chosen.owner }, oneLine(chosen.owner)));
  owner.value = chosen.owner;
  const known = new Set(["", chosen.owner]);
  const node = element("div", { class: "filters", role: "search", "aria-label": "Which jobs" },
    element("label", {}, "Search", search), element("label", {}, "State", state), element("label", {}, "Owner", owner));
  return {
    node,
    owners(names) {
      for (const name of names.slice(0, 500)) {
        if (known.has(name)) continue;
        known.add(name);
        owner.append(element("option", { value: name }, oneLine(name, 60)));
      }
    },
  };
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

function makeRow(job) {
  const link = jobLink(job.jobId, job.name);
  return element("tr", { role: "row", "data-job": job.jobId },
    cell("", { class: "short" }, jobBadge(job)),
    rowHead({ class: "name wide" }, element("div", { class: "joined" }, link, element("span", { class: "quiet mono" }, shortId(job.jobId)))),
    cell("owner", { class: "name" }, element("span", { class: "clipped" }, isolated(""))),
    cell("", { class: "wide" }, progressBar()), cell("left", { class: "short" }),
    cell("loss", { class: "number" }), cell("age", { class: "number" }));
}

function updateRow(row, job, app) {
  const [state, , owner, progress, left, loss, born] = row.children;
  setJobBadge(state.firstChild, job);
  setAttribute(state, "title", oneLine(job.stateReason, 400, "") || null);
  setText(owner.firstChild.firstChild, oneLine(ownerOf(job), 60, ""));
  setProgress(progress.firstChild, `Steps of ${oneLine(job.name, 60)}`, Number(job.step ?? 0), Number(job.totalSteps ?? 0));
  const seconds = secondsLeft(app.samples.get(job.jobId), job);
  setText(left, Number.isFinite(seconds) ? duration(seconds) : "");
  setText(loss, job.loss === undefined ? "" : number(Number(job.loss)));
  setText(born, age(now() - millis(job.createTime) / 1000));
  setAttribute(born, "title", dateAndTime(job.createTime));
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
