import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const css = readFileSync(new URL("../palette.css", import.meta.url), "utf8");
const [light, dark] = css.split("@media");

function colours(text) {
  return new Map([...text.matchAll(/--([\w-]+): (#[0-9a-f]{6});/gu)].map(([, name, value]) => [name, value]));
}

// WCAG 2.2: relative luminance and contrast ratio.
function luminance(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const TEXT = ["text", "quiet", "accent", "good", "busy", "warn", "bad", "second"];
const PAPERS = ["paper", "card", "raised"];
const PAIRS = [["on-accent", "accent"], ["on-danger", "danger"], ["text", "warn-paper"]];
const MARKS = ["control", "smooth", "second", "compute", "exchange", "wait", "accent", ...Array.from({ length: 8 }, (_, place) => `run-${place + 1}`)];

for (const [name, text] of [["light", light], ["dark", dark]]) {
  test(`the ${name} palette can be read`, () => {
    const palette = colours(text);
    const check = (one, other, least) => {
      const found = contrast(palette.get(one), palette.get(other));
      assert.ok(found >= least, `${one} on ${other}: ${found.toFixed(2)}, at least ${least}`);
    };
    for (const one of TEXT) for (const paper of PAPERS) check(one, paper, 4.5);
    for (const [one, other] of PAIRS) check(one, other, 4.5);
    // Parts of drawings and the edges of controls.
    for (const one of MARKS) check(one, "card", 3);
  });
}

test("both palettes have the same colours, and no other file has any", () => {
  assert.deepEqual([...colours(light).keys()], [...colours(dark).keys()]);
  for (const file of ["page.css", "job.css"]) {
    assert.doesNotMatch(readFileSync(new URL(`../${file}`, import.meta.url), "utf8"), /#[0-9a-f]{3,8}\b/iu);
  }
});
