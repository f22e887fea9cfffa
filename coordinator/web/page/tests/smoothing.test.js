import assert from "node:assert/strict";
import { test } from "node:test";
import { reach, smooth } from "../smoothing.js";

test("a constant stays what it is, from its first value on", () => {
  const pairs = Array.from({ length: 50 }, (_, place) => [place * 3, 0.25]);
  for (const [, value] of smooth(pairs, 7)) assert.ok(Math.abs(value - 0.25) < 1e-12);
});

test("a jump is followed by the share that its age says", () => {
  const pairs = [...Array.from({ length: 1000 }, (_, step) => [step, 0]), ...Array.from({ length: 10 }, (_, place) => [1000 + place, 1])];
  const last = smooth(pairs, 10).at(-1)[1];
  assert.ok(Math.abs(last - (1 - Math.exp(-1))) < 1e-6, `${last}`);
});

test("half of the points give nearly the same line", () => {
  const whole = Array.from({ length: 2000 }, (_, step) => [step, Math.exp(-step / 500)]);
  const half = whole.filter(([step]) => step % 2 === 1);
  const [one, other] = [smooth(whole, 100), smooth(half, 100)];
  const at = (pairs) => pairs.find(([step]) => step === 1501)[1];
  assert.ok(Math.abs(at(one) - at(other)) < 1e-3);
});

test("none means the values themselves", () => {
  const pairs = [[1, 5], [2, 7]];
  assert.equal(smooth(pairs, 0), pairs);
  assert.equal(reach(0, 1000), 0);
  assert.equal(reach(1, 1000), 250);
  assert.deepEqual(smooth([], 5), []);
});
