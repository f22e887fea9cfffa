import assert from "node:assert/strict";
import { test } from "node:test";
import { madeText, textsOf } from "../texts.js";

const hash = (letter) => letter.repeat(64);

test("texts are found by their names, in their order", () => {
  const names = ["text-0010.json", "texts.jsonl", "text-0002.json", "job.toml", "text-0001.png", "text-a.json"];
  const found = textsOf(names.map((name) => ({ name, sha256: hash("a") })));
  assert.deepEqual(found.map(({ number, name }) => [number, name]), [[2, "text-0002.json"], [10, "text-0010.json"]]);
  assert.deepEqual(textsOf([{ name: "text-0001.json", sha256: "../x" }, { name: "text-0002.json" }]), []);
});

test("what a file says is not trusted", () => {
  const made = madeText({ prompt: "Dear", text: " friend", tokens: [1, 2], ended: "end_of_text" });
  assert.deepEqual(made, { prompt: "Dear", text: " friend", tokens: 2, ended: true });
  assert.equal(madeText({ prompt: "", text: "x".repeat(1e6), ended: "max_new_tokens" }).text.length, 20_000);
  for (const wrong of [null, [], "text", { text: "a" }, { prompt: 1, text: "a" }]) assert.equal(madeText(wrong), null);
});
