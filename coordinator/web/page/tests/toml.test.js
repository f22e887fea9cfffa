import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { WHOLE_NUMBERS, jobFile } from "../toml.js";

test("a spec becomes the job file that it came from", () => {
  const spec = {
    kind: "textual_inversion", name: 'a "cat"', model: { base: "/sd" }, data: { folders: [{ images: "./a", repeats: "2" }] },
    train: { placeholderToken: "7", learningRate: 0.002, scaleLr: true, maxTrainSteps: "200", templates: ["a {}", "b\\{}\n"], learningRates: "" },
    cluster: { worldSize: "2" }, concepts: [{ placeholderToken: "<x>", numVectors: "3" }],
  };
  const written = jobFile(spec, { owner: "ada", labels: { project: "red hat", "a/b": "" }, priority: 5 });
  assert.equal(written, [
    'kind = "textual_inversion"', 'name = "a \\"cat\\""', "", "[model]", 'base = "/sd"', "", "[data]",
    'folders = [{ images = "./a", repeats = 2 }]', "", "[train]", 'placeholder_token = "7"', "learning_rate = 0.002",
    "scale_lr = true", "max_train_steps = 200", 'templates = ["a {}", "b\\\\{}\\n"]', "", "[cluster]", "world_size = 2", "",
    "[[concepts]]", 'placeholder_token = "<x>"', "num_vectors = 3", "", "[queue]", 'owner = "ada"',
    'labels = { project = "red hat", "a/b" = "" }', "priority = 5", "",
  ].join("\n"));
});

test("what is not there is not written", () => {
  assert.equal(jobFile({ kind: "k", model: undefined }, { owner: undefined, labels: { a: "b" }, priority: null }), 'kind = "k"\n\n[queue]\nlabels = { a = "b" }\n');
});

test("a section of two words is found", () => {
  const spec = { kind: "generate_text", model: { base: "/gpt2" }, generateText: { prompts: ["a", ""], numSamples: "2", topK: "0", topP: 0.5, seed: "7" } };
  assert.equal(jobFile(spec, {}), [
    'kind = "generate_text"', "", "[model]", 'base = "/gpt2"', "", "[generate_text]", 'prompts = ["a", ""]', "num_samples = 2", "top_k = 0",
    "top_p = 0.5", "seed = 7", "",
  ].join("\n"));
});

test("a spec of each kind has its own sections", () => {
  const spec = {
    kind: "gpt2_finetune", model: { base: "/gpt2" }, cluster: { worldSize: "2" },
    gpt2: { tokens: "/t", nLayer: "0", maxIters: "600000", learningRate: 0.0006, decayLr: true, resumeFromCheckpoint: "" },
  };
  assert.equal(jobFile(spec, {}), [
    'kind = "gpt2_finetune"', "", "[model]", 'base = "/gpt2"', "", "[gpt2]", 'tokens = "/t"', "n_layer = 0",
    "max_iters = 600000", "learning_rate = 0.0006", "decay_lr = true", "", "[cluster]", "world_size = 2", "",
  ].join("\n"));
});

test("all whole numbers of a spec are known", () => {
  const proto = readFileSync(new URL("../../../../proto/proto/ringtune/v1/job.proto", import.meta.url), "utf8");
  const messages = [...proto.matchAll(/^message (\w+Spec) \{(.*?)^\}/gmsu)].map(([, , body]) => body);
  assert.ok(messages.length >= 9);
  const found = messages.flatMap((body) => [...body.matchAll(/\bu?int64 (\w+) = /gu)].map(([, name]) => name));
  assert.deepEqual([...new Set(found)].sort(), [...WHOLE_NUMBERS].sort());
});
