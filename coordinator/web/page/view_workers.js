// The workers, and what may be done with them.
import { call, list, now } from "./api.js";
import { batched, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { question } from "./dialogs.js";
import { age, bytes, dateAndTime, millis, oneLine, shortId, visible } from "./format.js";
import { badge, cell, rowHead, setBadge, table } from "./parts.js";
import { VERIFICATION, workerState } from "./words.js";
import { called, distinctions } from "./workers.js";

/** Heartbeats are read so often while the view is open, in milliseconds. */
const EVERY = 5_000;
const MOST_WORKERS = 2_000;
const MARKS = { idle: "○", busy: "▶", lost: "✕", draining: "◐" };

/** The view. */
export function workersView(app) {
  const mayDrain = app.may("ClusterService/DrainWorker");
  const columns = ["State", "Host", "Job", "Version", "Processor and memory", "Numerics class", "Last heartbeat"];
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
    const distinct = distinctions(workers);
    keep(rows.body, workers, (worker) => worker.workerId, (worker) => makeRow(worker, mayDrain),
      (row, worker) => updateRow(row, worker, app, { read, name: called(worker, distinct.get(worker.workerId), 60) }));
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
      element("span", { class: "clipped" }, isolated("")), element("span", { class: "quiet mono" }, shortId(worker.workerId))),
    element("div", { class: "quiet mono" }, isolated(""))),
    cell("job", { class: "brief" }), cell("version", { class: "short" }, element("span", {}), element("span", { class: "quiet" })),
    cell("", { class: "wide" }, element("div", {}), element("div", { class: "quiet" })),
    cell("numerics", { class: "brief" }, element("span", { class: "clipped mono" })), cell("heartbeat", { class: "short" }),
    ...(mayDrain ? [cell("", { class: "short" }, element("button", { type: "button" }))] : []));
}

function updateRow(row, worker, app, { read, name }) {
  const [state, host, job, version, processor, numerics, heartbeat, actions] = row.children;
  const word = workerState(worker.state);
  const shown = worker.draining ? `draining, ${word}` : word;
  setBadge(state.firstChild, shown, worker.draining ? MARKS.draining : (MARKS[word] ?? "?"));
  setText(host.firstChild.firstChild.firstChild, oneLine(worker.hostName, 60, "(no host name)"));
  setText(host.lastChild.firstChild, oneLine(worker.address, 80, ""));
  showJob(job, worker, app);
  const can = worker.capabilities ?? {};
  setText(version.firstChild, oneLine(can.version, 40, ""));
  setText(version.lastChild, can.libtorchVersion ? ` libtorch ${oneLine(can.libtorchVersion, 40)}` : "");
  setText(processor.firstChild, oneLine(can.cpuModel, 80, ""));
  setText(processor.lastChild, worker.capabilities ? sizeOf(can) : "");
  setText(numerics.firstChild, oneLine(can.numericsClass, 60, ""));
  setAttribute(numerics.firstChild, "title", visible(can.numericsClass ?? ""));
  setText(heartbeat, worker.lastHeartbeatTime ? `${age(now() - millis(worker.lastHeartbeatTime) / 1000)} ago` : "");
  setAttribute(heartbeat, "title", dateAndTime(worker.lastHeartbeatTime));
  if (actions) drainButton(actions.firstChild, worker, name, read);
}

// 8 cores, 6 threads for a rank, 31 GiB
function sizeOf(can) {
  const several = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  return [several(can.cores ?? 0, "core"), `${several(can.threads ?? 0, "thread")} for a rank`, bytes(can.memoryBytes)].join(", ");
}

function showJob(node, worker, app) {
  const key = worker.jobId ? `${worker.jobId} ${worker.rank ?? 0} ${app.jobs.has(worker.jobId)}` : "";
  if (node.dataset.shown === key) return;
  node.dataset.shown = key;
  if (key === "") return node.replaceChildren();
  const known = app.jobs.get(worker.jobId);
  const name = known && oneLine(known.name, 60);
  const link = element("a", { href: `#/jobs/${encodeURIComponent(worker.jobId)}`, class: "clipped" },
    isolated(name ?? shortId(worker.jobId)));
  const what = known?.verification ? `${VERIFICATION}, rank` : "rank";
  return node.replaceChildren(link, element("span", { class: "quiet" }, `${what} ${worker.rank ?? 0}`));
}

function drainButton(button, worker, name, read) {
  const draining = worker.draining === true;
  setText(button, draining ? "Undrain" : "Drain");
  setAttribute(button, "aria-label", `${draining ? "Undrain" : "Drain"} ${name} ${shortId(worker.workerId)}`);
  button.onclick = () => question({
    title: draining ? "Take jobs again?" : "Take this worker out?",
    text: [element("span", {}, isolated(name), ` · ${shortId(worker.workerId)}`),
      draining ? "It gets jobs again." : "It leaves its ring after this step, and gets no new job until it is undrained."],
    yes: draining ? "Undrain" : "Drain",
    act: async () => {
      await call(`ClusterService/${draining ? "UndrainWorker" : "DrainWorker"}`, { workerId: worker.workerId });
      await read();
    },
  });
}
