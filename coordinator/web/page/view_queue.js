// What runs and what waits, in the order in which it comes, and why.
import { list, now } from "./api.js";
import { batched, drawn, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { age, count, dateAndTime, millis, oneLine, shortId } from "./format.js";
import { ownerOf } from "./jobs.js";
import { cell, jobBadge, jobLink, rowHead, setJobBadge, table } from "./parts.js";
import { inQueue, ranksText, sharesOf } from "./sweeps.js";
import { tellingReason, waitingText } from "./words.js";

/** It is read so often, in milliseconds. */
const EVERY = 5_000;
const MOST_JOBS = 2_000;
const STATES = ["JOB_STATE_RUNNING", "JOB_STATE_PREPARING", "JOB_STATE_PAUSED", "JOB_STATE_QUEUED"];
const [WIDTH, HEIGHT] = [1000, 26];

/** The view. */
export function queueView(app) {
  const heading = element("h1", { tabindex: "-1" }, "Queue");
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "shares" });
  const legend = element("ul", { class: "legend shares" });
  const picture = element("div", { class: "card part ranks", hidden: true }, svg, legend);
  const rows = table("Queue", [{ label: "State" }, { label: "Job" }, { label: "Owner" }, { label: "Priority", number: true }, { label: "Ranks", number: true },
    { label: "Since", number: true }, { label: "Why" }], { class: "stacked queue" });
  const frame = element("div", { class: "card scrolled", hidden: true }, rows.node);
  const empty = element("p", { class: "notice quiet" }, "Reading the queue …");
  const node = element("div", {}, element("div", { class: "head" }, heading), picture, empty, frame);
  let jobs = [];
  let idle = 0;
  let left = false;
  let timer = 0;

  const read = async () => {
    clearTimeout(timer);
    try {
      const [queue, workers] = await Promise.all([
        list("JobService/ListJobs", "jobs", { pageSize: 500, states: STATES, orderBy: "create_time" }, MOST_JOBS),
        list("ClusterService/ListWorkers", "workers", { pageSize: 500 }, MOST_JOBS),
      ]);
      jobs = inQueue(queue.found);
      idle = workers.found.filter((worker) => worker.state === "WORKER_STATE_IDLE" && !worker.draining).length;
      setText(empty, "No job runs or waits.");
      soon();
    } catch (error) {
      if (!app.isRefused(error) && jobs.length === 0) setText(empty, error.message);
    }
    clearTimeout(timer);
    if (!left && app.isShown()) timer = setTimeout(read, EVERY);
  };
  const update = () => {
    show(frame, jobs.length > 0);
    show(empty, jobs.length === 0);
    const shares = sharesOf(jobs, idle);
    show(picture, shares.all > 0);
    drawShares(svg, legend, shares);
    keep(rows.body, jobs, (job) => job.jobId, makeRow, updateRow);
  };
  const soon = batched(update);
  return {
    node, heading, title: "Queue", update: read, cluster: read, tick: soon,
    leave() {
      left = true;
      clearTimeout(timer);
    },
  };
}

function makeRow(job) {
  return element("tr", { role: "row", "data-job": job.jobId }, cell("", { class: "short" }, jobBadge(job)),
    rowHead({ class: "name wide" }, element("div", { class: "joined" }, jobLink(job.jobId, job.name), element("span", { class: "quiet mono" }, shortId(job.jobId)))),
    cell("owner", { class: "name" }, isolated("")), cell("priority", { class: "number" }), cell("ranks", { class: "number" }),
    cell("since", { class: "number" }), cell("", { class: "wide" }));
}

function updateRow(row, job) {
  const [state, , owner, priority, ranks, since, why] = row.children;
  setJobBadge(state.firstChild, job);
  setText(owner.firstChild, oneLine(ownerOf(job), 60, ""));
  setText(priority, String(job.queue?.priority ?? 0));
  setText(ranks, ranksText(job));
  const from = job.waiting?.since ?? job.startTime ?? job.createTime;
  setText(since, age(now() - millis(from) / 1000));
  setAttribute(since, "title", dateAndTime(from));
  const said = job.waiting ? (job.stateReason ?? "") + waitingText(job, now()) : tellingReason(job);
  const running = job.state === "JOB_STATE_RUNNING" && said === "" ? `step ${count(job.step)} of ${count(job.totalSteps)}` : said;
  setText(why, oneLine(running, 400, ""));
}

// Who has which part of the ranks.
function drawShares(svg, legend, { parts, idle, all }) {
  const key = JSON.stringify([parts, idle]);
  if (svg.dataset.shown === key) return;
  svg.dataset.shown = key;
  const called = (part) => (part.owner === null ? "others" : oneLine(part.owner, 40, "nobody"));
  setAttribute(svg, "aria-label", `${all} ranks: ${[...parts.map((part) => `${called(part)} ${part.ranks}`), `${idle} free`].join(", ")}`);
  svg.replaceChildren(drawn("rect", { x: 0, y: 0, width: WIDTH, height: HEIGHT, rx: 4, class: "free" }),
    ...parts.map((part, place) => drawn("rect", {
      x: (WIDTH * part.from).toFixed(1), y: 0, width: Math.max(1, WIDTH * part.share - 1).toFixed(1), height: HEIGHT, class: `run-${place + 1}`,
    })));
  legend.replaceChildren(...parts.map((part, place) => element("li", { class: `run-${place + 1}` }, isolated(called(part)), ` ${count(part.ranks)}`)),
    element("li", { class: "free" }, `free ${count(idle)}`));
}
