// The page: who looks, which view is shown, and the stream that keeps it true.
//
// `view_*` are the views of addresses, `part_*` parts of a job's view. `stream.js` has the one stream of events; `job_model.js`
// and `jobs.js` turn events into what is shown. Whatever decides (formats, routes, series, scales, rings, merging, reading job
// files) is pure, and tested in node.
//
// Invariant: texts become text nodes. Nothing makes markup or a script of a string; the page's policy forbids both, too.
// Invariant: a page has one stream at most, and none while its tab is hidden. What the stream says twice counts once.
import { CallError, session } from "./api.js";
import { element, setAttribute, setText, show } from "./dom.js";
import { addSample } from "./eta.js";
import { count } from "./format.js";
import { mergeJobs } from "./jobs.js";
import { format, parse } from "./routes.js";
import { Stream } from "./stream.js";
import { compareView } from "./view_compare.js";
import { jobView } from "./view_job.js";
import { jobsView, readJobs, readNewest } from "./view_jobs.js";
import { loginView, showWho } from "./view_login.js";
import { queueView } from "./view_queue.js";
import { sweepView } from "./view_sweep.js";
import { workersView } from "./view_workers.js";

/** Times and ages move so often, in milliseconds. */
const TICK = 5_000;
const RETRY = 2_000;
const MOST_GONE = 10_000;

const by = (id) => document.getElementById(id);
const main = by("main");
let view = null;

const app = {
  session: null,
  jobs: new Map(),
  samples: new Map(),
  jobsRead: false,
  moreJobs: false,

  may: (method) => app.session?.methods?.includes(method) ?? false,
  isShown: () => document.visibilityState === "visible",
  announce(text) {
    setText(by("announce"), text);
  },
  addJobs(jobs = []) {
    for (const id of mergeJobs(app.jobs, jobs.filter((job) => !app.gone.has(job.jobId)))) {
      const job = app.jobs.get(id);
      const samples = addSample(app.samples.get(id) ?? [], job);
      if (samples.length > 0) app.samples.set(id, samples);
      else app.samples.delete(id);
    }
    view?.jobs?.(jobs);
  },
  // The coordinator has listed all that it has; jobs that are not among them are gone, unless older ones were not read.
  onlyJobs(ids, more) {
    if (!more) for (const id of [...app.jobs.keys()]) if (!ids.has(id) && !app.seen.has(id)) app.forgetJob(id);
    app.moreJobs = more;
    app.jobsRead = true;
    view?.jobs?.([]);
  },
  // Jobs that the stream spoke of while the list was read.
  seen: new Set(),
  forgetJob(id) {
    app.jobs.delete(id);
    app.samples.delete(id);
  },
  // Deleted jobs, the newest: a list that was read before may have them still. No id comes twice.
  gone: new Set(),
  deleteJobs(ids) {
    for (const id of ids) {
      app.gone.add(id);
      app.forgetJob(id);
    }
    for (const id of app.gone) {
      if (app.gone.size <= MOST_GONE) break;
      app.gone.delete(id);
    }
    view?.deleted?.(ids);
    view?.jobs?.([]);
  },
  // Whether an error means that nobody is logged in (any more): then there is the login, and nothing else to show.
  isRefused(error) {
    if (!(error instanceof CallError) || error.code !== "unauthenticated") return false;
    app.enter();
    return true;
  },
  enter,
  stream: new Stream({
    jobs(found) {
      for (const job of found.jobs ?? []) app.seen.add(job.jobId);
      app.addJobs(found.jobs);
    },
    deleted: (ids) => app.deleteJobs(ids),
    missed: refresh,
    cluster: showCluster,
    event: (events) => view?.events?.(events),
    progress: (progress) => view?.progress?.(progress),
    timings: (timings) => view?.timings?.(timings),
    opened(again) {
      if (again) refresh();
      else if (app.jobsRead) readNewest(app).catch((error) => app.isRefused(error));
    },
    connected: (is) => showLost(!is),
    broken: checkLogin,
    ended(reason) {
      if (reason === "login") enter();
    },
    failed: (error) => view?.failed?.(error),
  }, {
    open: (address) => new EventSource(address),
    later: (work, after) => setTimeout(work, after),
    never: (timer) => clearTimeout(timer),
    shown: () => app.isShown(),
  }),
};

/** Asks who looks, and shows what they may see. Also after a login, a logout and a new version. */
async function enter() {
  let who;
  try {
    who = await session();
  } catch (error) {
    const refused = error.code === "unauthenticated";
    showLost(!refused, error);
    if (refused) showRefused(error);
    setTimeout(enter, Math.max(RETRY, error.wait * 1000));
    return;
  }
  showLost(false);
  const first = app.session;
  app.session = who;
  showWho(who, app);
  show(by("newer"), first !== null && first.version !== who.version);
  const known = who.login !== "none";
  show(by("views"), known);
  show(by("cluster"), known);
  app.jobs.clear();
  app.samples.clear();
  app.jobsRead = false;
  if (!known) {
    app.stream.rest();
    app.announce("");
    showView(loginView(app));
    return;
  }
  refreshJobs();
  route();
}

function refreshJobs() {
  app.seen.clear();
  readJobs(app).catch((error) => {
    if (!app.isRefused(error) && app.session) setTimeout(() => app.isShown() && refreshJobs(), RETRY);
  });
}

// The stream was away: whatever ended meanwhile is not said again.
async function refresh() {
  try {
    const who = await session();
    show(by("newer"), app.session !== null && app.session.version !== who.version);
    if (who.login !== app.session?.login || who.name !== app.session?.name) {
      await enter();
      return;
    }
  } catch {
    // The stream will end too, and come again.
    return;
  }
  refreshJobs();
  view?.refreshed?.();
}

// A stream that cannot be opened may be refused because the login is no longer good, and says no more than that.
async function checkLogin() {
  try {
    if ((await session()).login !== app.session?.login) await enter();
  } catch (error) {
    // It does not answer, and the stream tries again; or it says why it will not.
    if (error.code === "unauthenticated") await enter();
    else if (error.code === "resource_exhausted") showLost(true, error);
  }
}

function route() {
  const chosen = parse(location.hash);
  for (const link of by("views").children) setAttribute(link, "aria-current", link.dataset.view === chosen.view ? "page" : null);
  if (app.session === null || app.session.login === "none") return;
  if (chosen.view !== "job") app.stream.follow(null);
  if (chosen.view === "job") showView(jobView(app, chosen));
  else if (chosen.view === "sweep") showView(sweepView(app, chosen));
  else if (chosen.view === "queue") showView(queueView(app));
  else if (chosen.view === "workers") showView(workersView(app));
  else if (chosen.view === "compare") showView(compareView(app, chosen));
  else if (chosen.view === "jobs") showView(jobsView(app, chosen));
  else showView(lostView());
}

function lostView() {
  const heading = element("h1", { tabindex: "-1" }, "There is no such view");
  const link = element("p", {}, element("a", { href: format({ view: "jobs" }) }, "All jobs"));
  return { node: element("div", { class: "card notice" }, heading, link), heading, title: "Not here", update() {}, leave() {} };
}

function showView(next) {
  const first = view === null;
  view?.leave();
  view = next;
  main.replaceChildren(next.node);
  document.title = `${next.title} · Ringtune`;
  next.update();
  if (next.focus) next.focus.focus();
  else if (!first) next.heading.focus({ preventScroll: true });
  if (!first) scrollTo(0, 0);
}

function showCluster(cluster) {
  const parts = [["workersIdle", "idle"], ["workersBusy", "busy"], ["workersLost", "lost"], ["jobsQueued", "queued"], ["jobsActive", "running"]];
  const words = parts.map(([key, word]) => [element("b", {}, count(cluster[key] ?? 0)), ` ${word}`]);
  const [idle, busy, lost, queued, active] = words;
  by("cluster").replaceChildren("Workers: ", ...idle, ", ", ...busy, ", ", ...lost, " · Jobs: ", ...queued, ", ", ...active);
  view?.cluster?.();
}

// Only a certificate is refused like this, one that was revoked, say: there is nothing to log in with while the browser shows it.
function showRefused(error) {
  if (app.session === null && view !== null) return;
  app.session = null;
  app.stream.rest();
  app.announce("");
  app.jobs.clear();
  app.samples.clear();
  for (const id of ["views", "cluster", "who"]) show(by(id), false);
  const heading = element("h1", { tabindex: "-1" }, "This browser's certificate is refused");
  const node = element("div", { class: "card notice" }, heading, element("p", {}, `The coordinator says: ${error.message}.`),
    element("p", {}, "Import another one, or remove it and log in with a token."));
  showView({ node, heading, title: "Refused", update() {}, leave() {} });
}

// Whoever is refused for a while hears why and for how long, not that nobody answers.
function showLost(lost, error) {
  const text = error?.code === "resource_exhausted" ? `Refused for now: ${error.message}` : "Connection lost, trying again …";
  setText(by("lost"), lost ? text : "");
  show(by("lost"), lost);
}

by("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", route);
addEventListener("online", () => app.stream.restart());
document.addEventListener("visibilitychange", () => {
  if (app.session === null || app.session.login === "none") return;
  if (!app.isShown()) {
    app.stream.rest();
    return;
  }
  app.stream.resume();
  view?.update();
});
setInterval(() => app.isShown() && view?.tick?.(), TICK);
// loading.js waits for it.
dispatchEvent(new Event("begun"));
enter();
