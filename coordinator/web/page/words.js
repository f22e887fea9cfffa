// What the values of the API's enums are called on the page. A value that is not known keeps its own name.
import { count, duration, millis } from "./format.js";

const ENDED = new Set(["JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"]);

/** All states of a job, in the order of its life: value, word, mark. The mark tells them apart without colour. */
export const JOB_STATES = [
  ["JOB_STATE_QUEUED", "queued", "◷"],
  ["JOB_STATE_PREPARING", "preparing", "◔"],
  ["JOB_STATE_RUNNING", "running", "▶"],
  ["JOB_STATE_PAUSED", "paused", "⏸"],
  ["JOB_STATE_SUCCEEDED", "succeeded", "✓"],
  ["JOB_STATE_FAILED", "failed", "✕"],
  ["JOB_STATE_CANCELLED", "cancelled", "⊘"],
];

/** Whether nothing more will come of a job. */
export function hasEnded(state) {
  return ENDED.has(state);
}

// What says no more than the state does.
const NOTHING_MORE = new Set([
  "JOB_REASON_PREPARING", "JOB_REASON_TRAINING", "JOB_REASON_DRAWING", "JOB_REASON_WRITING", "JOB_REASON_VERIFYING", "JOB_REASON_COMPLETED",
]);

/** Why a job is in its state, where that is more than the state says; empty otherwise. */
export function tellingReason(job) {
  return NOTHING_MORE.has(job.reasonCode) ? "" : (job.stateReason ?? "");
}

/** What a job in the queue waits for, behind its reason: who is before it, and when it may start. `now`: seconds. */
export function waitingText(job, now) {
  const waiting = job.waiting;
  if (!waiting) return "";
  const ahead = Number(waiting.ahead ?? 0);
  const before = ahead === 0 ? "first in the queue" : `${count(ahead)} ${ahead === 1 ? "job" : "jobs"} ahead`;
  if (!waiting.estimatedStartTime) return `; ${before}; nobody can say when it starts`;
  const seconds = millis(waiting.estimatedStartTime) / 1000 - now;
  return `; ${before}; ${seconds < 1 ? "may start now" : `may start in ${duration(seconds)}`}`;
}

/** What a job is called that computes another one's steps again. */
export const VERIFICATION = "verification";

/** What sort of job it is, as it is told apart in lists: its kind, or that it verifies another one. */
export function jobKind(job) {
  if (job.verification) return VERIFICATION;
  return (job.kind ?? job.spec?.kind ?? "").replaceAll("_", " ");
}

function without(prefix, value) {
  return String(value ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

/** queued, preparing, running … */
export function jobState(state) {
  return without("JOB_STATE_", state) || "unknown";
}

/** One character for a state. */
export function jobMark(state) {
  return JOB_STATES.find(([value]) => value === state)?.[2] ?? "?";
}

/** assigned, preparing, ready, training, waiting … */
export function rankPhase(phase) {
  return without("RANK_PHASE_", phase) || "unknown";
}

/** idle, busy, lost. */
export function workerState(state) {
  return without("WORKER_STATE_", state) || "unknown";
}

/** info, warn, error. */
export function logLevel(level) {
  return without("LOG_LEVEL_", level) || "info";
}

const STAGES = {
  PROGRESS_STAGE_FETCH: "fetches pictures",
  PROGRESS_STAGE_DOWNLOAD: "downloads the model",
  PROGRESS_STAGE_LOAD: "loads the model",
  PROGRESS_STAGE_ENCODE: "encodes pictures",
  PROGRESS_STAGE_DRAW: "draws pictures",
  PROGRESS_STAGE_WRITE: "makes texts",
};

/** What a rank is busy with. */
export function stage(value) {
  return STAGES[value] ?? without("PROGRESS_STAGE_", value);
}
