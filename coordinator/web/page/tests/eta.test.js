import assert from "node:assert/strict";
import { test } from "node:test";
import { addSample, secondsLeft, stepsPerSecond } from "../eta.js";

const at = (second, step, state = "JOB_STATE_RUNNING") => ({
  state, step: String(step), totalSteps: "1000", startTime: "2026-01-01T00:00:00Z",
  updateTime: new Date(Date.UTC(2026, 0, 1) + second * 1000).toISOString(),
});

test("the last minute counts, not the slow beginning", () => {
  let samples = [];
  for (let second = 0; second <= 200; second += 1) samples = addSample(samples, at(second, second < 100 ? second : 100 + (second - 100) * 5));
  assert.ok(Math.abs(stepsPerSecond(samples, at(200, 600)) - 5) < 1e-9);
  assert.ok(Math.abs(secondsLeft(samples, at(200, 600)) - 80) < 1e-9);
  assert.ok(samples.length <= 62);
});

test("however often a job is said, few samples are kept", () => {
  let samples = [];
  for (let tenth = 0; tenth < 6000; tenth += 1) samples = addSample(samples, at(tenth / 100, tenth));
  assert.ok(samples.length <= 150);
});

test("at first the whole run says it; before the first step nothing does", () => {
  const samples = addSample([], at(10, 20));
  assert.equal(stepsPerSecond(samples, at(10, 20)), 2);
  assert.ok(Number.isNaN(secondsLeft([], at(10, 0))));
  assert.ok(Number.isNaN(secondsLeft([], { state: "JOB_STATE_QUEUED", totalSteps: "10" })));
  assert.ok(Number.isNaN(secondsLeft(samples, at(10, 20, "JOB_STATE_SUCCEEDED"))));
  assert.deepEqual(addSample(samples, at(11, 20, "JOB_STATE_PREPARING")), []);
});

test("a job that goes on from a checkpoint begins anew", () => {
  let samples = addSample([], at(10, 20));
  samples = addSample(samples, at(20, 40));
  samples = addSample(samples, at(30, 25));
  assert.equal(samples.length, 1);
  assert.equal(addSample(samples, at(31, 25)).length, 1);
});
