import assert from "node:assert/strict";
import { test } from "node:test";
import { MOST_DETAIL, addPoints, isThin, nearest, pairs, pointOf, sampled, thin } from "../series.js";

const point = (step, loss = Math.sin(step), validationLoss = null) => ({ step, loss, validationLoss, learningRate: 0.1, stepsPerSecond: 1, epoch: 1 });
const range = (from, to) => Array.from({ length: to - from + 1 }, (_, place) => point(from + place));
const steps = (points) => points.map(({ step }) => step);

test("a report becomes a point, whatever is left out of it", () => {
  const whole = pointOf({ step: "12", loss: 0.5, learningRate: 0.01, stepSeconds: 0.25, validationLoss: 0.4, epoch: "2" });
  assert.deepEqual(whole, { step: 12, loss: 0.5, validationLoss: 0.4, learningRate: 0.01, stepsPerSecond: 4, epoch: 2 });
  assert.deepEqual(pointOf({ step: "1", loss: "NaN", validationLoss: "Infinity" }), { step: 1, loss: null, validationLoss: null, learningRate: 0, stepsPerSecond: null, epoch: 0 });
  assert.equal(pointOf({ step: "1", loss: 3, skipped: true }).loss, null);
});

test("steps come once and in order, however they come", () => {
  let points = addPoints([], range(5, 8));
  points = addPoints(points, range(9, 12));
  points = addPoints(points, range(7, 14));
  points = addPoints(points, [point(2), point(1), point(2)]);
  assert.deepEqual(steps(points), [1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
  assert.deepEqual(addPoints(points, []), points);
});

test("100,000 steps that come one after the other stay few, and keep their extremes", () => {
  let points = [];
  for (let step = 1; step <= 100_000; step += 1) {
    const loss = step === 31_337 ? 99 : (step === 70_001 ? -99 : Math.abs(Math.sin(step)));
    points = addPoints(points, [point(step, loss, step % 10_000 === 0 ? 0.5 : null)]);
  }
  assert.ok(points.length <= 4000, `${points.length}`);
  assert.equal(points.at(-1).step, 100_000);
  assert.ok(points.some(({ loss }) => loss === 99) && points.some(({ loss }) => loss === -99));
  assert.equal(points.filter(({ validationLoss }) => validationLoss !== null).length, 10);
  assert.deepEqual(steps(points), steps(points).slice().sort((one, other) => one - other));
});

test("thinning keeps no more than it may, and all where that is enough", () => {
  for (const most of [4, 5, 100, 1999]) {
    const thinned = thin(range(1, 5000), most);
    assert.ok(thinned.length <= most && thinned.length >= most / 4 - 1, `${most}: ${thinned.length}`);
  }
  const few = range(1, 10);
  assert.equal(thin(few, 10), few);
  assert.deepEqual(thin([{ ...point(1), loss: null }, { ...point(2), loss: null }, point(3)], 2).at(-1).step, 3);
});

test("a table has the first and the last of a long history", () => {
  const rows = sampled(range(1, 1000), 60);
  assert.equal(rows.length, 60);
  assert.deepEqual([rows[0].step, rows.at(-1).step], [1, 1000]);
});

test("the nearest point is found", () => {
  const points = [point(10), point(20), point(40)];
  assert.deepEqual([-5, 10, 14, 16, 29, 31, 99].map((step) => nearest(points, step)), [0, 0, 0, 1, 1, 2, 2]);
  assert.equal(nearest([], 3), -1);
});

test("a table shows validation losses, which evenly chosen steps miss", () => {
  const points = range(1, 1000).map((one) => (one.step % 100 === 50 ? { ...one, validationLoss: 0.5 } : one));
  const rows = sampled(points, 60);
  assert.equal(rows.length, 60);
  assert.deepEqual(pairs(rows, "validationLoss").map(([step]) => step), [50, 150, 250, 350, 450, 550, 650, 750, 850, 950]);
  // Also where all steps have one.
  const all = sampled(range(1, 1000).map((one) => ({ ...one, validationLoss: 1 })), 60);
  assert.deepEqual([all.length, all[0].step, all.at(-1).step], [60, 1, 1000]);
});

test("a part is read anew where steps of it are missing and can be read", () => {
  const thinned = range(1, 5000).filter(({ step }) => step % 5 === 0);
  assert.equal(isThin(thinned, { from: 1000, to: 2000 }), true);
  assert.equal(isThin(range(1, 500), { from: 100, to: 200 }), false);
  assert.equal(isThin(range(1, 500), { from: 100, to: 900 }), false);
  assert.equal(isThin(thinned, { from: 1, to: MOST_DETAIL + 1 }), false);
});
