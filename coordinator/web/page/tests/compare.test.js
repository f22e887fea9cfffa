import assert from "node:assert/strict";
import { test } from "node:test";
import { differences, lowestValidation, runNames, unionOfSteps } from "../compare.js";

test("only options that differ are told, as the job files have them", () => {
  const end = '\n\n[[concepts]]\nimages = "x"\n\n[queue]\nowner = ';
  const one = { jobFile: `kind = "k"\nname = "one"\n\n[train]\nlearning_rate = 0.1\nseed = 1\nscale_lr = true${end}"a"\n` };
  const other = { jobFile: `kind = "k"\nname = "two"\n\n[train]\nlearning_rate = 0.2\nseed = 1${end}"b"\n` };
  assert.deepEqual(differences([one, other]), [
    { key: "train.learning_rate", values: ["0.1", "0.2"] }, { key: "train.scale_lr", values: ["true", null] },
  ]);
  assert.deepEqual(differences([one, one]), []);
  assert.deepEqual(differences([]), []);
  const lists = (last) => ({ jobFile: `[[concepts]]\nimages = "x"\n[[concepts]]\nimages = """\nx = 1\n[${last}]"""\nseed = 1\n` });
  assert.deepEqual(differences([lists("y"), lists("z")]), [{ key: "concepts[2].images", values: ['"""\nx = 1\n[y]"""', '"""\nx = 1\n[z]"""'] }]);
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
