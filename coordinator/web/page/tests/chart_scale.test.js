import assert from "node:assert/strict";
import { test } from "node:test";
import { logScale, logTicks, path, range, scale, ticks, within, zoomed } from "../chart_scale.js";

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

test("an outlier does not flatten all other values, unless it is asked for", () => {
  const values = [...Array.from({ length: 200 }, (_, place) => 1 + 0.1 * Math.sin(place)), 500];
  assert.ok(range(values).high > 500);
  const clipped = range(values, { clip: true });
  assert.ok(clipped.high < 1.3 && clipped.low > 0.7, JSON.stringify(clipped));
  // What falls evenly has no outliers, few values have none, and what never changes but once is all shown.
  const falls = Array.from({ length: 500 }, (_, place) => 10 - place / 100);
  assert.deepEqual(range(falls, { clip: true }), range(falls));
  assert.deepEqual(range([1, 1.1, 90], { clip: true }), range([1, 1.1, 90]));
  const once = [...Array.from({ length: 100 }, () => 2), 7];
  assert.deepEqual(range(once, { clip: true }), range(once));
});

test("a logarithmic axis has positive values alone, and marks within", () => {
  const { low, high } = range([0, -1, 0.001, 10], { log: true });
  assert.ok(low > 0 && low < 0.001 && high > 10 && high < 100);
  assert.equal(range([0, -2], { log: true }), null);
  assert.deepEqual(logTicks(0.009, 2.5, 6), [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]);
  assert.ok(logTicks(1e-9, 1e9, 4).length <= 8);
  assert.deepEqual(logTicks(3.1, 3.4, 3), ticks(3.1, 3.4, 3));
  const y = logScale(0.01, 100, 100, 0);
  assert.deepEqual([0.01, 1, 100].map((value) => Math.round(y(value))), [100, 50, 0]);
});

test("a part of the steps has its lines to the edges", () => {
  const pairs = [1, 2, 3, 4, 5, 6].map((step) => [step, step]);
  assert.deepEqual(within(pairs, { from: 3, to: 4 }).map(([step]) => step), [2, 3, 4, 5]);
  assert.deepEqual(within(pairs, { from: 0, to: 9 }), pairs);
  assert.deepEqual(within([[1, 1], [100, 2]], { from: 40, to: 50 }).map(([step]) => step), [1, 100]);
  assert.deepEqual(within([], { from: 1, to: 2 }), []);
});

test("whoever drags chooses whole steps, and all of them are no part", () => {
  const all = { from: 1, to: 100 };
  assert.deepEqual(zoomed(50.2, 20.7, all), { from: 20, to: 51 });
  assert.deepEqual(zoomed(50, 50, all), { from: 50, to: 51 });
  assert.deepEqual(zoomed(90, 400, all), { from: 90, to: 100 });
  assert.equal(zoomed(-5, 300, all), null);
  assert.equal(zoomed(100, 100, all), null);
});
