// Reads a job file: as much of TOML as job files need, into what CreateJob asks for. All of it is pure.
import { WHOLE_NUMBERS } from "./toml.js";

/** What is wrong with a job file, and where. */
export class TomlError extends Error {
  constructor(line, problem) {
    super(`line ${line}: ${problem}`);
  }
}

/**
 * A CreateJobRequest without its request id: { spec, queue }. Keys become those of proto3 JSON; what they mean, and whether
 * there are such, the coordinator says. Throws a TomlError.
 */
export function readJobFile(text) {
  const { queue, ...spec } = new Reader(text).file();
  return { spec: named(spec), ...(queue === undefined ? {} : { queue: named(queue) }) };
}

function named(table) {
  return Object.fromEntries(Object.entries(table).map(([key, given]) => [camel(key), key === "labels" ? given : value(key, given)]));
}

function value(key, given) {
  if (Array.isArray(given)) return given.map((one) => value(key, one));
  if (typeof given === "object") return named(given);
  // Whole numbers are texts in proto3 JSON: those above 2^53 stay what they are.
  if (typeof given === "bigint") return WHOLE_NUMBERS.has(key) ? String(given) : Number(given);
  return given;
}

function camel(key) {
  return key.replace(/_([a-z])/gu, (_, letter) => letter.toUpperCase());
}

const BARE = /[A-Za-z0-9_-]+/yu;
const NUMBER = /[+-]?[0-9][0-9A-Za-z_.+-]*/yu;
const ESCAPES = { b: "\b", t: "\t", n: "\n", f: "\f", r: "\r", '"': '"', "\\": "\\" };

class Reader {
  constructor(text) {
    this.text = text.replaceAll("\r\n", "\n");
    this.at = 0;
  }

  file() {
    // Without a prototype no key means anything but itself.
    const root = Object.create(null);
    let table = root;
    for (this.skip(true); this.at < this.text.length; this.skip(true)) {
      if (this.take("[[")) table = this.header("]]", root, true);
      else if (this.take("[")) table = this.header("]", root, false);
      else this.pair(table);
      this.skip(false);
      if (this.at < this.text.length && this.text[this.at] !== "\n") this.fail("one key or heading is expected on a line");
    }
    return root;
  }

  header(end, root, isList) {
    const key = this.key();
    this.expect(end);
    if (isList) {
      root[key] ??= [];
      if (!Array.isArray(root[key])) this.fail(`${key} is no list of tables`);
      root[key].push(Object.create(null));
      return root[key].at(-1);
    }
    if (key in root) this.fail(`[${key}] is there twice`);
    root[key] = Object.create(null);
    return root[key];
  }

  pair(table) {
    const key = this.key();
    this.expect("=");
    if (key in table) this.fail(`${key} is there twice`);
    table[key] = this.value();
  }

  key() {
    this.skip(false);
    const here = this.text[this.at];
    const key = here === '"' || here === "'" ? this.string() : this.match(BARE);
    if (key === null) this.fail("a key is expected");
    this.skip(false);
    return key;
  }

  value() {
    this.skip(false);
    const here = this.text[this.at];
    if (here === '"' || here === "'") return this.string();
    if (this.take("[")) return this.list();
    if (this.take("{")) return this.inline();
    if (this.take("true")) return true;
    if (this.take("false")) return false;
    const word = this.match(NUMBER);
    if (word === null) this.fail("a value is expected: a text in quotes, a number, true, false, a [list] or a { table }");
    const plain = word.replaceAll("_", "");
    if (/^[+-]?(0|[1-9]\d*)$/u.test(plain)) return BigInt(plain.replace("+", ""));
    if (!/^[+-]?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/u.test(plain)) this.fail(`${word} is no number`);
    return Number(plain);
  }

  list() {
    const found = [];
    for (this.skip(true); !this.take("]"); this.skip(true)) {
      found.push(this.value());
      this.skip(true);
      if (!this.take(",") && this.text[this.at] !== "]") this.fail("a comma or ] is expected");
    }
    return found;
  }

  inline() {
    const table = Object.create(null);
    for (this.skip(false); !this.take("}"); this.skip(false)) {
      this.pair(table);
      this.skip(false);
      if (!this.take(",") && this.text[this.at] !== "}") this.fail("a comma or } is expected");
    }
    return table;
  }

  string() {
    const quote = this.text[this.at];
    if (this.text.startsWith(quote.repeat(3), this.at)) this.fail("texts of several lines are written with \\n here");
    let found = "";
    for (this.at += 1; this.text[this.at] !== quote; this.at += 1) {
      const here = this.text[this.at];
      if (here === undefined || here === "\n") this.fail(`the text does not end: ${quote} is missing`);
      found += here === "\\" && quote === '"' ? this.escape() : here;
    }
    this.at += 1;
    return found;
  }

  // The backslash is read; afterwards the reader is at the last character of the escape.
  escape() {
    this.at += 1;
    const letter = this.text[this.at];
    if (letter in ESCAPES) return ESCAPES[letter];
    const digits = { u: 4, U: 8 }[letter];
    const code = this.text.slice(this.at + 1, this.at + 1 + (digits ?? 0));
    const number = Number.parseInt(code, 16);
    if (digits === undefined || !/^[0-9a-f]+$/iu.test(code) || code.length < digits || number > 0x10ffff) this.fail(`\\${letter ?? ""} is no escape`);
    this.at += digits;
    return String.fromCodePoint(number);
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? null;
    this.at += found?.length ?? 0;
    return found;
  }

  take(text) {
    if (!this.text.startsWith(text, this.at)) return false;
    this.at += text.length;
    return true;
  }

  expect(text) {
    if (!this.take(text)) this.fail(`${text} is expected`);
  }

  // Spaces and comments, and line ends where they mean nothing.
  skip(lines) {
    for (;;) {
      const here = this.text[this.at];
      if (here === "#") while (this.at < this.text.length && this.text[this.at] !== "\n") this.at += 1;
      else if (here === " " || here === "\t" || (lines && here === "\n")) this.at += 1;
      else return;
    }
  }

  fail(problem) {
    throw new TomlError(this.text.slice(0, this.at).split("\n").length, problem);
  }
}
