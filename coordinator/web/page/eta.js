// How fast a job is, and when it will be done.
import { hasEnded } from "./words.js";
import { millis } from "./format.js";

/** Seconds that a pace looks back. */
const WINDOW = 60;
/** Shorter than this, two samples say little. */
const SHORTEST = 2;
const MOST_SAMPLES = 150;

/** Adds where a job was at a time of the coordinator's clock. Samples that are too old go; a step back begins anew. */
export function addSample(samples, job) {
  const time = millis(job.updateTime) / 1000;
  const step = Number(job.step ?? 0);
  if (!Number.isFinite(time) || job.state !== "JOB_STATE_RUNNING") return [];
  const last = samples.at(-1);
  if (last && step < last.step) return [{ time, step }];
  if (last && (step === last.step || time <= last.time)) return samples;
  const kept = samples.filter((sample) => time - sample.time <= WINDOW);
  return [...kept.slice(-MOST_SAMPLES + 1), { time, step }];
}

/** Steps a second of the last minute; from the whole run where that is all there is; NaN: nobody can know. */
export function stepsPerSecond(samples, job) {
  const first = samples?.[0];
  const last = samples?.at(-1);
  if (first && last.time - first.time >= SHORTEST) return (last.step - first.step) / (last.time - first.time);
  const seconds = (millis(job.endTime ?? job.updateTime) - millis(job.startTime)) / 1000;
  const step = Number(job.step ?? 0);
  return seconds > 0 && step > 0 ? step / seconds : NaN;
}

/** Seconds until the last step; NaN where nobody can know. */
export function secondsLeft(samples, job) {
  if (hasEnded(job.state) || job.state !== "JOB_STATE_RUNNING") return NaN;
  const left = Number(job.totalSteps ?? 0) - Number(job.step ?? 0);
  const pace = stepsPerSecond(samples, job);
  return left >= 0 && pace > 0 ? left / pace : NaN;
}
