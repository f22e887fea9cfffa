import assert from "node:assert/strict";
import { test } from "node:test";
import { MOST_LINES, addLines, applyEvents, applyJob, applyProgress, applySteps, applyTimings, newModel, preparing } from "../job_model.js";

const step = (sequence, number) => ({ jobId: "a", sequence: String(sequence), step: { step: String(number), loss: 0.1, stepSeconds: 1 } });
const log = (sequence, message = "m") => ({ jobId: "a", sequence: String(sequence), log: { level: "LOG_LEVEL_INFO", message } });

test("events count once, however often they are sent", () => {
  const model = newModel("a");
  model.sequence = 2;
  const events = [step(2, 1), step(3, 2), log(4), { sequence: "5", artifact: { name: "x.png", size: "3" } }];
  assert.deepEqual(applyEvents(model, events), { lines: true, artifacts: true, points: true });
  assert.deepEqual(applyEvents(model, events), { lines: false, artifacts: false, points: false });
  assert.deepEqual(model.points.map((point) => point.step), [2]);
  assert.deepEqual([model.lines.length, model.artifacts.size, model.sequence], [1, 1, 5]);
});

test("the stored history and what is live overlap without doubling", () => {
  const model = newModel("a");
  applyEvents(model, [step(10, 5), step(11, 6), log(12)]);
  applySteps(model, [1, 2, 5, 6].map((number) => step(0, number).step));
  addLines(model, [log(12), log(3), { sequence: "2", stateChange: { to: "JOB_STATE_RUNNING" } }]);
  assert.deepEqual(model.points.map((point) => point.step), [1, 2, 5, 6]);
  assert.deepEqual(model.lines.map((line) => line.sequence), [2, 3, 12]);
});

test("a log without end keeps its newest lines", () => {
  const model = newModel("a");
  for (let sequence = 1; sequence <= 2 * MOST_LINES; sequence += 1) applyEvents(model, [log(sequence)]);
  assert.equal(model.lines.length, MOST_LINES);
  assert.equal(model.lines.at(-1).sequence, 2 * MOST_LINES);
});

test("a job keeps its spec, and an older word of it is left out", () => {
  const model = newModel("a");
  applyJob(model, { jobId: "a", lastSequence: "5", spec: { kind: "x" }, state: "JOB_STATE_RUNNING" }, 0);
  applyJob(model, { jobId: "a", lastSequence: "4", state: "JOB_STATE_QUEUED" }, 1);
  assert.equal(model.job.state, "JOB_STATE_RUNNING");
  applyJob(model, { jobId: "a", lastSequence: "6", state: "JOB_STATE_SUCCEEDED" }, 2);
  assert.deepEqual([model.job.state, model.job.spec.kind], ["JOB_STATE_SUCCEEDED", "x"]);
});

test("what ranks do belongs to their ring", () => {
  const model = newModel("a");
  const ring = (epoch, phase = "RANK_PHASE_PREPARING") => ({ state: "JOB_STATE_RUNNING", lastSequence: "1", ring: { epoch: String(epoch), members: ["v", "w"].map((workerId, rank) => ({ workerId, rank, phase })) } });
  applyJob(model, ring(1), 0);
  applyProgress(model, { ranks: [{ rank: 1, stage: "PROGRESS_STAGE_LOAD", done: "1", total: "2" }, { stage: "PROGRESS_STAGE_FETCH", total: "4" }] });
  assert.deepEqual(preparing(model).map((rank) => rank.rank ?? 0), [0, 1]);
  applyJob(model, ring(1, "RANK_PHASE_TRAINING"), 1);
  assert.deepEqual(preparing(model), [], "they are past it");
  applyProgress(model, { ranks: [{ stage: "PROGRESS_STAGE_DRAW", done: "1", total: "9" }] });
  assert.deepEqual(preparing(model).map((rank) => rank.stage), ["PROGRESS_STAGE_DRAW"]);
  applyTimings(model, { ranks: [{ rank: 1, epoch: "1", computeSeconds: 1 }] });
  applyJob(model, ring(2), 1);
  assert.equal(model.timings.size, 0);
  applyTimings(model, { ranks: [{ epoch: "1", computeSeconds: 1 }, { rank: 1, epoch: "2", computeSeconds: 1 }] });
  assert.deepEqual([...model.timings.keys()], [1]);
  applyTimings(model, {});
  assert.equal(model.timings.size, 0);
  applyTimings(model, { ranks: [{ rank: 1, epoch: "2", computeSeconds: 1 }] });
  applyJob(model, { state: "JOB_STATE_SUCCEEDED", lastSequence: "2" }, 2);
  assert.deepEqual([model.timings.size, model.progress.size], [0, 0]);
});
