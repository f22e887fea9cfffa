import assert from "node:assert/strict";
import { test } from "node:test";
import { differences, lowestValidation, runNames, unionOfSteps } from "../compare.js";

test("only options that differ are told, by their keys in job files", () => {
  const concepts = (last) => [{ images: "x" }, { images: last, templates: ["a {}"] }];
  const one = { spec: { kind: "k", name: "one", train: { learningRate: 0.1, seed: "1", scaleLr: true }, concepts: concepts("y") } };
  const other = { spec: { kind: "k", name: "two", train: { learningRate: 0.2, seed: "1" }, concepts: concepts("z") } };
  assert.deepEqual(differences([one, other]), [
    { key: "train.learning_rate", values: ["0.1", "0.2"] }, { key: "train.scale_lr", values: ["true", null] }, { key: "concepts[2].images", values: ["y", "z"] },
  ]);
  assert.deepEqual(differences([one, one]), []);
  assert.deepEqual(differences([]), []);
});

test("runs of one name are told apart", () => {
  assert.deepEqual(runNames([{ jobId: "aaaaaaaa-1", name: "x" }, { jobId: "bbbbbbbb-2", name: "x" }, { jobId: "c", name: "y" }]), ["x …aaaaaa-1", "x …bbbbbb-2", "y"]);
});

test("histories are laid over each other by their steps", () => {
  const points = (...steps) => steps.map((step) => ({ step, validationLoss: step % 2 === 0 ? 1 / step : null }));
  assert.deepEqual(unionOfSteps([points(1, 3, 5), points(2, 3, 10)]).map(({ step }) => step), [1, 2, 3, 5, 10]);
  assert.deepEqual(lowestValidation(points(1, 2, 4)).step, 4);
  assert.equal(lowestValidation(points(1, 3)), null);
});
