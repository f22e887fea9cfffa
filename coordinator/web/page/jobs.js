// The jobs that the page knows: merged from lists and from the stream, and chosen for the table. All of it is pure.
import { hasEnded, jobKind, jobState } from "./words.js";
import { millis } from "./format.js";

/** Rows of a page of the table. */
export const ROWS = 50;

/**
 * Puts jobs into a map by their id. What is older than what is there is left out: a list may arrive after what the stream
 * said meanwhile. The table needs no spec but its kind. Says which ids have changed.
 */
export function mergeJobs(known, jobs) {
  const changed = [];
  for (const { spec, ...job } of jobs ?? []) {
    const before = known.get(job.jobId);
    if (before && isOlder(job, before)) continue;
    known.set(job.jobId, job);
    changed.push(job.jobId);
  }
  return changed;
}

function isOlder(job, before) {
  const one = Number(job.lastSequence ?? 0);
  const other = Number(before.lastSequence ?? 0);
  if (one !== other) return one < other;
  return millis(job.updateTime) < millis(before.updateTime);
}

/** How much of a job is done, 0 to 1; none where nobody knows yet. */
export function share(job) {
  const total = Number(job.totalSteps ?? 0);
  return total > 0 ? Math.min(1, Number(job.step ?? 0) / total) : null;
}

/** Whose job it is. */
export function ownerOf(job) {
  return job.queue?.owner ?? "";
}

const SORTS = {
  age: (job) => millis(job.createTime) || 0,
  name: (job) => (job.name ?? "").toLowerCase(),
  owner: (job) => ownerOf(job).toLowerCase(),
  kind: jobKind,
  state: (job) => jobState(job.state),
  progress: (job) => share(job) ?? -1,
  loss: (job) => job.loss ?? Infinity,
};

/** The columns that the table can be sorted by. */
export const SORT_KEYS = Object.keys(SORTS);

/**
 * The jobs for the table: those that a search, a state, a kind and an owner leave, in an order such as "name" or, the greatest
 * first, "-name". Jobs that are equal in it are the newest first.
 */
export function selectJobs(jobs, list) {
  const words = list.q.toLowerCase().split(/\s+/u).filter((word) => word !== "");
  const chosen = [...jobs].filter((job) => inState(job, list.state) && (list.kind === "" || jobKind(job) === list.kind) && (list.owner === "" || ownerOf(job) === list.owner)
    && words.every((word) => textOf(job).includes(word)));
  const downwards = list.sort.startsWith("-");
  const key = SORTS[list.sort.replace("-", "")] ?? SORTS.age;
  const keyed = chosen.map((job) => ({ job, key: key(job), created: millis(job.createTime) || 0 }));
  keyed.sort((one, other) => {
    const by = compare(one.key, other.key);
    if (by !== 0) return downwards ? -by : by;
    return compare(other.created, one.created) || compare(one.job.jobId, other.job.jobId);
  });
  return keyed.map(({ job }) => job);
}

function compare(one, other) {
  if (one === other) return 0;
  return one < other ? -1 : 1;
}

function inState(job, state) {
  if (state === "") return true;
  if (state === "active") return !hasEnded(job.state);
  if (state === "ended") return hasEnded(job.state);
  return jobState(job.state) === state;
}

function textOf(job) {
  const words = [job.name ?? "", job.jobId, ownerOf(job), jobState(job.state), jobKind(job), ...labelsOf(job)];
  return words.join(" ").toLowerCase();
}

/** The labels of a job as they are searched for, in order: key=value. */
export function labelsOf(job) {
  return Object.entries(job.queue?.labels ?? {}).map(([key, value]) => `${key}=${value}`).sort();
}

/** All values that jobs have of something, such as their owners, in order; none is left out. */
export function valuesOf(jobs, of) {
  const values = new Set([...jobs].map(of));
  values.delete("");
  return [...values].sort((one, other) => one.localeCompare(other));
}

/** What may be done with some jobs: those that can be cancelled, deleted, and compared because they have steps. */
export function chosenJobs(jobs, ids) {
  const chosen = [...ids].map((id) => jobs.get(id)).filter((job) => job !== undefined);
  return {
    all: chosen, toCancel: chosen.filter((job) => !hasEnded(job.state)), toDelete: chosen.filter((job) => hasEnded(job.state)),
    toCompare: chosen.filter((job) => job.loss !== undefined),
  };
}

/** One page of rows, and how many pages there are; a page beyond the last is the last. */
export function pageOf(rows, page, size = ROWS) {
  const pages = Math.max(1, Math.ceil(rows.length / size));
  const chosen = Math.min(Math.max(1, page), pages);
  return { rows: rows.slice((chosen - 1) * size, chosen * size), page: chosen, pages };
}
