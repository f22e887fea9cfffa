// The workers, and what may be done with them.
import { call, list, now } from "./api.js";
import { batched, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { question } from "./dialogs.js";
import { age, bytes, dateAndTime, millis, oneLine, shortId, visible } from "./format.js";
import { badge, cell, rowHead, setBadge, table } from "./parts.js";
import { workerState } from "./words.js";

/** Heartbeats are read so often while the view is open, in milliseconds. */
const EVERY = 5_000;
const MOST_WORKERS = 2_000;
const MARKS = { idle: "○", busy: "▶", lost: "✕", draining: "◐" };

/** The view. */
export function workersView(app) {
  const mayDrain = app.may("ClusterService/DrainWorker");
  const columns = ["State", "Host", "Job", "Processor", "Numerics class", "Last heartbeat"];
  const rows = table("Workers", [...columns.map((label) => ({ label })), ...(mayDrain ? [{ label: "Actions", narrow: true }] : [])],
    { class: "stacked" });
  const frame = element("div", { class: "card scrolled", hidden: true }, rows.node);
  const empty = element("p", { class: "notice quiet" }, "Reading the workers …");
  const heading = element("h1", { tabindex: "-1" }, "Workers");
  const node = element("div", {}, element("div", { class: "head" }, heading), empty, frame);
  let workers = [];
  let left = false;
  let timer = 0;

  const read = async () => {
    clearTimeout(timer);
    try {
      const { found } = await list("ClusterService/ListWorkers", "workers", { pageSize: 500, orderBy: "host_name" }, MOST_WORKERS);
      workers = found;
      setText(empty, "No worker has joined. `ringtune-worker --coordinator ADDRESS` starts one.");
      soon();
    } catch (error) {
      if (!app.isRefused(error) && workers.length === 0) setText(empty, error.message);
    }
    clearTimeout(timer);
    if (!left && app.isShown()) timer = setTimeout(read, EVERY);
  };
  const update = () => {
    show(frame, workers.length > 0);
    show(empty, workers.length === 0);
    keep(rows.body, workers, (worker) => worker.workerId, (worker) => makeRow(worker, mayDrain),
      (row, worker) => updateRow(row, worker, app, read));
  };
  const soon = batched(update);
  return {
    node, heading, title: "Workers", update: read, cluster: read, tick: soon,
    leave() {
      left = true;
      clearTimeout(timer);
    },
  };
}

function makeRow(worker, mayDrain) {
  return element("tr", { role: "row", "data-worker": worker.workerId },
    cell("", { class: "short" }, badge()),
    rowHead({ class: "name wide" }, element("div", { class: "joined" },
      element("span", { class: "clipped" }, isolated(oneLine(worker.hostName, 80, "(no host name)"))),
      element("span", { class: "quiet mono" }, shortId(worker.workerId)))),
    cell("job", { class: "brief" }), cell("", { class: "wide" }, element("div", {}), element("div", { class: "quiet" })),
    cell("numerics", { class: "brief" }, element("span", { class: "clipped mono" })), cell("heartbeat", { class: "short" }),
    ...(mayDrain ? [cell("", { class: "short" }, element("button", { type: "button" }))] : []));
}

function updateRow(row, worker, app, read) {
  const [state, , job, processor, numerics, heartbeat, actions] = row.children;
  const word = workerState(worker.state);
  const shown = worker.draining ? `draining, ${word}` : word;
  setBadge(state.firstChild, shown, worker.draining ? MARKS.draining : (MARKS[word] ?? "?"));
  showJob(job, worker, app);
  const can = worker.capabilities ?? {};
  setText(processor.firstChild, oneLine(can.cpuModel, 80, ""));
  setText(processor.lastChild, worker.capabilities ? `${can.threads ?? 0} ${can.threads === 1 ? "thread" : "threads"}, ${bytes(can.memoryBytes)}` : "");
  setText(numerics.firstChild, oneLine(can.numericsClass, 60, ""));
  setAttribute(numerics.firstChild, "title", visible(can.numericsClass ?? ""));
  setText(heartbeat, worker.lastHeartbeatTime ? `${age(now() - millis(worker.lastHeartbeatTime) / 1000)} ago` : "");
  setAttribute(heartbeat, "title", dateAndTime(worker.lastHeartbeatTime));
  if (actions) drainButton(actions.firstChild, worker, read);
}

function showJob(node, worker, app) {
  const key = worker.jobId ? `${worker.jobId} ${worker.rank ?? 0}` : "";
  if (node.dataset.shown === key) return;
  node.dataset.shown = key;
  if (key === "") return node.replaceChildren();
  const name = app.jobs.get(worker.jobId)?.name;
  const link = element("a", { href: `#/jobs/${encodeURIComponent(worker.jobId)}`, class: "clipped" },
    isolated(name === undefined ? shortId(worker.jobId) : oneLine(name, 60)));
  return node.replaceChildren(link, element("span", { class: "quiet" }, `rank ${worker.rank ?? 0}`));
}

function drainButton(button, worker, read) {
  const draining = worker.draining === true;
  setText(button, draining ? "Undrain" : "Drain");
  setAttribute(button, "aria-label", `${draining ? "Undrain" : "Drain"} ${oneLine(worker.hostName, 80, "worker")} ${shortId(worker.workerId)}`);
  button.onclick = () => question({
    title: draining ? "Take jobs again?" : "Take this worker out?",
    text: [element("span", {}, isolated(oneLine(worker.hostName, 120, "(no host name)")), ` · ${shortId(worker.workerId)}`),
      draining ? "It gets jobs again." : "It leaves its ring after this step, and gets no new job until it is undrained."],
    yes: draining ? "Undrain" : "Drain",
    act: async () => {
      await call(`ClusterService/${draining ? "UndrainWorker" : "DrainWorker"}`, { workerId: worker.workerId });
      await read();
    },
  });
}
