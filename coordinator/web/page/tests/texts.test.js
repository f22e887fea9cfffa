import assert from "node:assert/strict";
import { test } from "node:test";
import { madeText, textsOf } from "../texts.js";

const hash = (letter) => letter.repeat(64);

test("texts are found by their names, in their order", () => {
  const names = ["text-0010.json", "texts.jsonl", "text-0002.json", "job.toml", "text-0001.png", "text-a.json"];
  const found = textsOf(names.map((name) => ({ name, sha256: hash("a") })));
  assert.deepEqual(found.map(({ title, name }) => [title, name]), [["Text 2", "text-0002.json"], ["Text 10", "text-0010.json"]]);
  const ordered = textsOf(["sample-12-150.json", "sample-3-40.json", "sample-3-40-0.png"].map((name) => ({ name, sha256: hash("b") })));
  assert.deepEqual(ordered.map(({ title }) => title), ["Order 3, step 40", "Order 12, step 150"]);
  assert.deepEqual(textsOf([{ name: "text-0001.json", sha256: "../x" }, { name: "text-0002.json" }]), []);
});

test("what a file says is not trusted", () => {
  const made = madeText({ prompt: "Dear", text: " friend", tokens: [1, 2], ended: "end_of_text" });
  assert.deepEqual(made, { prompt: "Dear", text: " friend", tokens: 2, ended: true });
  assert.equal(madeText({ prompt: "", text: "x".repeat(1e6), ended: "max_new_tokens" }).text.length, 20_000);
  for (const wrong of [null, [], "text", { text: "a" }, { prompt: 1, text: "a" }]) assert.equal(madeText(wrong), null);
});
