import assert from "node:assert/strict";
import { test } from "node:test";
import { groupsOf } from "../results.js";

const told = (names) => groupsOf(names.map((name) => ({ name }))).map(({ key, files }) => [key, files.map(({ name }) => name)]);

test("the result stands before what came on the way", () => {
  const names = [
    "checkpoint-100.safetensors", "checkpoint-20.safetensors", "events.out.tfevents.ringtune", "job.log", "job.toml", "learned_embeds-emb_params.safetensors",
    "learned_embeds-steps-20.safetensors", "learned_embeds.safetensors", "metrics.csv", "preview-10-1.png", "preview-best-1.png", "README.md",
  ];
  assert.deepEqual(told(names), [
    ["result", ["learned_embeds-emb_params.safetensors", "learned_embeds.safetensors", "README.md"]],
    ["previews", ["preview-10-1.png", "preview-best-1.png"]],
    ["checkpoints", ["checkpoint-100.safetensors", "checkpoint-20.safetensors"]],
    ["earlier", ["learned_embeds-steps-20.safetensors"]],
    ["records", ["events.out.tfevents.ringtune", "job.log", "job.toml", "metrics.csv"]],
  ]);
});

test("of many the whole comes first, and each by its number", () => {
  assert.deepEqual(told(["00010.png", "00002.png", "sheet.png"]), [["result", ["sheet.png", "00002.png", "00010.png"]]]);
  assert.deepEqual(told(["text-0002.json", "texts.jsonl", "job.toml"]), [["result", ["texts.jsonl", "text-0002.json"]], ["records", ["job.toml"]]]);
  assert.deepEqual(told([]), []);
});
