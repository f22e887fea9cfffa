import assert from "node:assert/strict";
import { test } from "node:test";
import { path, range, scale, ticks } from "../chart_scale.js";

test("ticks are round, within, and about as many as asked for", () => {
  assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(0.13, 0.29, 3), [0.2]);
  assert.deepEqual(ticks(1, 100_000, 5), [20000, 40000, 60000, 80000, 100000]);
  for (const [low, high] of [[-3, 7], [1e-9, 3e-9], [99999, 100001], [0, 5e7]]) {
    const found = ticks(low, high, 5);
    assert.ok(found.length >= 2 && found.length <= 11, `${low} ${high}: ${found}`);
    assert.ok(found.every((value) => value >= low - 1e-12 && value <= high + 1e-12));
  }
  assert.deepEqual(ticks(3, 3, 5), [3]);
  assert.deepEqual(ticks(NaN, 3, 5), []);
});

test("a range has room around it, and is never empty", () => {
  assert.deepEqual(range([]), null);
  assert.deepEqual(range([null, NaN, Infinity]), null);
  const { low, high } = range([0.1, null, 0.3]);
  assert.ok(low < 0.1 && low >= 0 && high > 0.3);
  const one = range([5]);
  assert.ok(one.low < 5 && one.high > 5);
  assert.ok(range([0]).high > 0);
  const flat = range([0.02, 0.0199999]);
  assert.ok(flat.high - flat.low >= 0.00019, "what hardly changes is flat");
});

test("paths go where the scales say", () => {
  const x = scale(0, 10, 0, 100);
  const y = scale(0, 1, 50, 0);
  assert.equal(path([[0, 0], [5, 1]], x, y), "M0.0 50.0L50.0 0.0");
  assert.equal(path([], x, y), "");
  assert.equal(scale(3, 3, 7, 9)(3), 7);
});
