import assert from "node:assert/strict";
import { test } from "node:test";
import { inQueue, isOut, ladder, optionsOf, ranksText, rungsToCome, sharesOf } from "../sweeps.js";

test("a sweep says what differs, and what is to come", () => {
  const points = [{ settings: { b: "1", a: "2" }, passed: 1 }, { settings: { b: "3" } }];
  const sweep = { points, rungs: [{ step: "10", keep: 2 }, { step: "20", keep: 1 }] };
  assert.deepEqual(optionsOf(sweep), ["a", "b"]);
  assert.deepEqual(rungsToCome(sweep), ["the best 1 after step 20"]);
  assert.deepEqual([optionsOf({}), rungsToCome({})], [[], []]);
  assert.deepEqual(ladder({ step: "10", totalSteps: "40" }, sweep.rungs), { done: 0.25, rungs: [0.25, 0.5] });
  assert.deepEqual(ladder({}, sweep.rungs), { done: 0, rungs: [0, 0] });
  assert.ok(isOut({ reasonCode: "JOB_REASON_OUT_OF_SWEEP" }) && !isOut({}));
});

test("the queue has what runs first, and what waits in its order", () => {
  const job = (jobId, state, ahead) => ({ jobId, state: `JOB_STATE_${state}`, ...(ahead === undefined ? {} : { waiting: { ahead } }) });
  const jobs = [job("a", "QUEUED", 1), job("b", "QUEUED"), job("c", "RUNNING"), job("d", "SUCCEEDED"), job("e", "PAUSED"), job("f", "QUEUED", 0)];
  assert.deepEqual(inQueue(jobs).map((one) => one.jobId), ["c", "e", "b", "f", "a"]);
});

test("ranks are those that a job has or needs, of those that it wants", () => {
  const spec = { cluster: { worldSize: "4" } };
  assert.equal(ranksText({ ring: { members: [{}, {}, {}] }, spec }), "3 / 4");
  assert.equal(ranksText({ waiting: { needed: 2 }, spec }), "2 – 4");
  assert.equal(ranksText({ waiting: { needed: 4 }, spec }), "4");
  assert.equal(ranksText({}), "");
});

test("owners have parts of the ranks, the smallest together", () => {
  const job = (owner, ranks) => ({ queue: { owner }, ring: { members: Array.from({ length: ranks }, () => ({})) } });
  const { parts, all } = sharesOf([job("ada", 1), job("bob", 2), job("ada", 2), { queue: { owner: "eve" } }], 3);
  assert.equal(all, 8);
  assert.deepEqual(parts, [{ owner: "ada", ranks: 3, from: 0, share: 0.375 }, { owner: "bob", ranks: 2, from: 0.375, share: 0.25 }]);
  const many = sharesOf(Array.from({ length: 12 }, (_, at) => job(`owner-${at}`, 20 - at)), 0);
  assert.equal(many.parts.length, 8);
  assert.deepEqual([many.parts[7].owner, many.parts[7].ranks], [null, 13 + 12 + 11 + 10 + 9]);
  assert.deepEqual(sharesOf([], 0), { parts: [], idle: 0, all: 0 });
});
