import assert from "node:assert/strict";
import { test } from "node:test";
import { filesOf, otherPictures, previewsOf, sourcesOf } from "../previews.js";

const named = (...names) => names.map((name) => ({ name }));
const HASH = "ab".repeat(32);

test("previews are in the order of their steps, the best at the end", () => {
  const found = previewsOf(named("preview-100-1.png", "preview-best-0.png", "preview-20-0.png", "preview-100-0.png", "metrics.csv", "preview-x-1.png"));
  assert.deepEqual(found.map(({ step, pictures }) => [step, pictures.map(({ number }) => number)]), [[20, [0]], [100, [0, 1]], [null, [0]]]);
  assert.deepEqual(otherPictures(named("image-0010.png", "image-0002.png", "preview-1-0.png", "a.safetensors", "b.JPG")), ["b.JPG", "image-0002.png", "image-0010.png"]);
});

test("training pictures are found in all forms of a spec", () => {
  const uri = `artifact://sha256/${HASH}`;
  assert.deepEqual(sourcesOf({ train: { placeholderToken: "<a>" }, data: { images: uri } }), [{ label: "<a>", hash: HASH, place: uri }]);
  assert.deepEqual(sourcesOf({ data: { folders: [{ images: uri }, { images: "/data" }] } }).map(({ hash }) => hash), [HASH, null]);
  const concepts = [{ placeholderToken: "<x>", images: "/x" }, { placeholderToken: "<y>", folders: [{ images: uri, repeats: "2" }] }];
  assert.deepEqual(sourcesOf({ concepts }).map(({ label, hash }) => [label, hash]), [["<x>", null], ["<y>", HASH]]);
  for (const nothing of [undefined, {}, { data: {} }]) assert.deepEqual(sourcesOf(nothing), []);
  // A hash that is none is a place, and never becomes an address.
  assert.equal(sourcesOf({ data: { images: "artifact://sha256/../../api" } })[0].hash, null);
});

test("a manifest is not trusted", () => {
  const files = [{ name: "a.png", sha256: HASH, caption: "<b>" }, { name: "b.png", sha256: "../x" }, { sha256: HASH }, null];
  assert.deepEqual(filesOf({ files }), [{ name: "a.png", hash: HASH, caption: "<b>" }]);
  const several = (captions) => filesOf({ files: [{ name: "a.png", sha256: HASH, captions }] })[0].caption;
  assert.deepEqual([several(["a cat", 7, "red"]), several("x"), several(undefined)], ["a cat | red", "", ""]);
  for (const wrong of [null, [], {}, { files: "x" }, 7]) assert.deepEqual(filesOf(wrong), []);
});
