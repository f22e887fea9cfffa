// One job as its view needs it: what was read at first, and what the stream added. Functions of their arguments alone.
import { addSample } from "./eta.js";
import { follow, newRing } from "./ring.js";
import { addPoints, pointOf } from "./series.js";

/** Lines of the log that are kept, the newest. */
export const MOST_LINES = 500;

/** A job of which nothing is known yet. */
export function newModel(id) {
  return {
    id, job: null, points: [], lines: [], artifacts: new Map(), progress: new Map(), timings: new Map(), samples: [],
    ring: newRing(), sequence: 0,
  };
}

/** The job as it is. What is older than what is known is left out. */
export function applyJob(model, job, now) {
  const known = model.job;
  if (known && Number(job.lastSequence ?? 0) < Number(known.lastSequence ?? 0)) return;
  // The stream says neither.
  model.job = { ...(known && { spec: known.spec, jobFile: known.jobFile }), ...job };
  model.samples = addSample(model.samples, job);
  const { epoch } = model.ring;
  model.ring = follow(model.ring, job, now);
  if (model.ring.epoch !== epoch) model.timings.clear();
  if (job.state !== "JOB_STATE_PREPARING" && job.state !== "JOB_STATE_RUNNING") {
    model.progress.clear();
    model.timings.clear();
  }
}

/** Events of the stream or of a list, in any portions; those that are known are left out. Says what changed. */
export function applyEvents(model, events) {
  const points = [];
  const changed = { lines: false, artifacts: false, points: false };
  for (const event of events ?? []) {
    const sequence = Number(event.sequence ?? 0);
    if (sequence <= model.sequence) continue;
    model.sequence = sequence;
    if (event.step) {
      points.push(pointOf(event.step));
    } else if (event.artifact) {
      model.artifacts.set(event.artifact.name, event.artifact);
      changed.artifacts = true;
    } else if (event.log || event.stateChange) {
      changed.lines = addLines(model, [event]) || changed.lines;
    }
  }
  if (points.length > 0) {
    model.points = addPoints(model.points, points);
    changed.points = true;
  }
  return changed;
}

/** Steps of the stored history. */
export function applySteps(model, steps) {
  model.points = addPoints(model.points, (steps ?? []).map(pointOf));
}

/** Log lines and changes of state, however they came; the newest stay. */
export function addLines(model, events) {
  const known = new Set(model.lines.map((line) => line.sequence));
  const fresh = events.filter((event) => event.log || event.stateChange).map((event) => lineOf(event))
    .filter((line) => !known.has(line.sequence));
  if (fresh.length === 0) return false;
  model.lines = [...model.lines, ...fresh].sort((one, other) => one.sequence - other.sequence).slice(-MOST_LINES);
  return true;
}

function lineOf(event) {
  const line = { sequence: Number(event.sequence ?? 0), time: event.time };
  if (event.stateChange) return { ...line, level: "state", change: event.stateChange };
  return { ...line, level: event.log.level, rank: event.log.rank, message: event.log.message ?? "" };
}

/** How far ranks are with what comes before the first step, or with drawing. */
export function applyProgress(model, progress) {
  for (const rank of progress.ranks ?? []) model.progress.set(rank.rank ?? 0, rank);
}

/** The newest averages of all ranks that have any; none: those before are over. Those of an older ring are left out. */
export function applyTimings(model, timings) {
  const current = (timings.ranks ?? []).filter((timing) => Number(timing.epoch ?? 0) >= model.ring.epoch);
  model.timings = new Map(current.map((timing) => [timing.rank ?? 0, timing]));
}

/** Ranks that are worth a bar: those that prepare, or draw. Of a rank that is past it the last word is old. */
export function preparing(model) {
  const early = new Set(["RANK_PHASE_ASSIGNED", "RANK_PHASE_PREPARING"]);
  const phases = new Map(model.ring.members.map((member) => [member.rank, member.phase]));
  const making = new Set(["PROGRESS_STAGE_DRAW", "PROGRESS_STAGE_WRITE"]);
  const isWorth = (rank) => making.has(rank.stage) || early.has(phases.get(rank.rank ?? 0));
  const ranks = [...model.progress.values()].filter((rank) => Number(rank.total ?? 0) > 0 && isWorth(rank));
  return ranks.sort((one, other) => (one.rank ?? 0) - (other.rank ?? 0));
}
