import assert from "node:assert/strict";
import { test } from "node:test";
import { jobFile } from "../toml.js";
import { TomlError, readJobFile } from "../toml_read.js";

test("a job's own file is read as the job that it came from", () => {
  const spec = {
    kind: "textual_inversion", name: 'a "cat" \\ \u202e\u0001', model: { base: "/sd" }, data: { folders: [{ images: "./a", repeats: "2" }] },
    train: { placeholderToken: "7", learningRate: 0.002, scaleLr: true, seed: "9007199254740993", templates: ["a {}", "b\\{}\n", ""] },
    generateText: { prompts: ["[x]", "# no comment"], topP: 1 }, cluster: { worldSize: "2" },
    concepts: [{ placeholderToken: "<x>", numVectors: "3" }, { placeholderToken: "<y>" }],
  };
  const queue = { owner: "ada", labels: { project: "red hat", "a/b": "", snake_case: "x" }, priority: 5 };
  assert.deepEqual(plain(readJobFile(jobFile(spec, queue))), { spec, queue });
  assert.deepEqual(plain(readJobFile(jobFile({ kind: "k" }, {}))), { spec: { kind: "k" } });
});

test("what people write by hand is read, too", () => {
  const text = "# a job\r\nkind='a\\b' # its kind\n\n[train]\n\"seed\" = +1_000\nlearning_rate = 5e-4\nadam_beta1=-0.5\nscale_lr=false\ntemplates = [\n  \"a\", # one\n  \"\\u00e4\\U0001F600\",\n]\n[queue]\nlabels = {a=\"b\", \"c d\" = 'e'}";
  assert.deepEqual(plain(readJobFile(text)), {
    spec: { kind: "a\\b", train: { seed: "1000", learningRate: 0.0005, adamBeta1: -0.5, scaleLr: false, templates: ["a", "ä😀"] } },
    queue: { labels: { a: "b", "c d": "e" } },
  });
});

test("what is wrong is told with its line", () => {
  const cases = [
    ["a = 1\na = 2", 2, /twice/u], ["[x]\n[x]", 2, /twice/u], ["a = 'b", 1, /does not end/u], ["\n\na", 3, /=/u], ["a = 1 b = 2", 1, /one key/u],
    ["a = [1 2]", 1, /comma/u], ["a = {b = 1 c = 2}", 1, /comma/u], ["a = 1.2.3", 1, /no number/u], ["a = 007", 1, /no number/u], ["a = \"\"\"x\"\"\"", 1, /several lines/u],
    ["a = \"\\q\"", 1, /escape/u], ["a = \"\\u00zz\"", 1, /escape/u], ["a =", 1, /value/u], ["[a", 1, /\]/u], ["[a]\n[[a]]", 2, /no list/u], ["a = [", 1, /value/u], ["= 1", 1, /key/u],
  ];
  for (const [text, line, problem] of cases) {
    assert.throws(() => readJobFile(text), (error) => error instanceof TomlError && error.message.startsWith(`line ${line}: `) && problem.test(error.message), text);
  }
});

test("no key changes what objects are", () => {
  const { spec } = readJobFile('__proto__ = "x"\n[constructor]\nprototype = 1');
  assert.equal(Object.getPrototypeOf(spec), Object.prototype);
  assert.deepEqual(Object.keys(spec), ["_Proto__", "constructor"]);
  assert.equal({}.prototype, undefined);
});

/** Without the objects' own prototypes, of which a text has none. */
function plain(found) {
  return JSON.parse(JSON.stringify(found));
}
