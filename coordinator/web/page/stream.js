// The one stream of events of a page: opened again whenever it ends, closed while nobody looks.

/** The first pause before another try, and the longest, in milliseconds. */
const PAUSES = { first: 500, longest: 10_000 };
/** A stream that does not open by then is given up. */
const OPENING = 15_000;
/** Until then a stream that is away is not worth a word. */
const QUIET = 2_000;

/**
 * Follows the coordinator. What it needs of a browser is given: `open(address)` makes an EventSource, `later` and `never`
 * are setTimeout and clearTimeout, `shown()` says whether somebody looks.
 *
 * `handlers`: deleted (ids of jobs), missed() when jobs may have been deleted without that being said, jobs, cluster, event (a list of events), progress, timings, each with its data; `opened(again)` as a stream
 * opens, `again` if it was open before and something may have been missed; `connected(bool)` when the state that people are told changes;
 * `broken()` when a stream ended or could not be opened, each time; `ended(reason)`; `failed(error)` when the job that is followed cannot be.
 */
export class Stream {
  constructor(handlers, { open, later, never, shown }) {
    this.handlers = handlers;
    this.browser = { open, later, never, shown };
    this.source = null;
    this.job = null;
    this.after = 0;
    this.wanted = false;
    this.pause = PAUSES.first;
    this.opened = false;
    this.timers = new Map();
  }

  /** Follows all jobs, and the events of `job` after a sequence number, if one is given; where nobody looks, once resumed. */
  follow(job = null, after = 0) {
    this.job = job;
    this.after = after;
    this.wanted = this.browser.shown();
    this.opened = false;
    this.pause = PAUSES.first;
    if (this.wanted) this.start();
    else this.stop();
  }

  /** Says nothing more until `follow` or `resume`. */
  rest() {
    this.wanted = false;
    this.stop();
    this.cancel("quiet");
  }

  /** Goes on where it was. Something may have been missed. */
  resume() {
    if (this.wanted) return;
    this.wanted = true;
    this.opened = true;
    this.pause = PAUSES.first;
    this.start();
  }

  /** Opens another stream now, without waiting for the next try. */
  restart() {
    if (this.wanted) this.start();
  }

  start() {
    this.stop();
    const source = this.browser.open(address(this.job, this.after));
    this.source = source;
    const mine = (work) => (message) => {
      if (this.source === source) work(message);
    };
    const data = (work) => mine((message) => work(JSON.parse(message.data)));
    source.onopen = mine(() => this.isOpen());
    source.onerror = mine((message) => {
      // An error of the connection; one that the coordinator sends has data and is handled below.
      if (message?.data === undefined) this.again();
    });
    source.addEventListener("jobs", data((found) => this.handlers.jobs(found)));
    source.addEventListener("deleted", data((found) => this.handlers.deleted(found.jobIds ?? [])));
    source.addEventListener("missed", mine(() => this.handlers.missed()));
    source.addEventListener("cluster", data((found) => this.handlers.cluster(found)));
    source.addEventListener("event", data((found) => this.take([found])));
    source.addEventListener("events", data((found) => this.take(found.events ?? [])));
    source.addEventListener("progress", data((found) => this.handlers.progress(found)));
    source.addEventListener("timings", data((found) => this.handlers.timings(found)));
    source.addEventListener("end", data((found) => this.hasEnded(found.reason ?? "")));
    source.addEventListener("error", mine((message) => {
      if (message.data !== undefined) this.refused(JSON.parse(message.data));
    }));
    this.timer("opening", OPENING, () => this.again());
  }

  take(events) {
    for (const event of events) this.after = Math.max(this.after, Number(event.sequence ?? 0));
    this.handlers.event(events);
  }

  isOpen() {
    this.cancel("opening");
    this.cancel("quiet");
    this.pause = PAUSES.first;
    this.handlers.connected(true);
    this.handlers.opened(this.opened);
    this.opened = true;
  }

  // The coordinator ends a stream in good order: soon there is another one.
  hasEnded(reason) {
    this.handlers.ended(reason);
    if (this.wanted) this.again();
  }

  // The job cannot be followed: all others still can.
  refused(error) {
    this.handlers.failed(error);
    if (this.job !== null && this.wanted) this.follow(null);
  }

  again() {
    this.stop();
    this.handlers.broken();
    if (!this.timers.has("quiet")) this.timer("quiet", QUIET, () => this.handlers.connected(false));
    this.timer("again", this.pause, () => this.start());
    this.pause = Math.min(PAUSES.longest, this.pause * 2);
  }

  stop() {
    this.source?.close();
    this.source = null;
    this.cancel("again");
    this.cancel("opening");
  }

  timer(name, after, work) {
    this.cancel(name);
    const run = () => {
      // The bar stays until a stream opens: "quiet" is not asked for twice.
      if (name !== "quiet") this.timers.delete(name);
      work();
    };
    this.timers.set(name, this.browser.later(run, after));
  }

  cancel(name) {
    if (this.timers.has(name)) this.browser.never(this.timers.get(name));
    this.timers.delete(name);
  }
}

function address(job, after) {
  if (job === null) return "/api/events";
  return `/api/events?${new URLSearchParams({ job, after: String(after) })}`;
}
