import assert from "node:assert/strict";
import { test } from "node:test";
import { age, briefly, bytes, count, dateAndTime, duration, local, megabytes, number, oneLine, pace, shortId, visible, zone } from "../format.js";

test("what cannot be seen is made visible, and nothing turns the direction of what follows", () => {
  assert.equal(visible("\u202egpj.exe"), "‹U+202E›gpj.exe");
  assert.equal(visible("a\u0000b\u001b[31m"), "a‹U+0000›b‹U+001B›[31m");
  assert.equal(visible("\u2066x\u2069\ufeff"), "‹U+2066›x‹U+2069›‹U+FEFF›");
  for (const harmless of ["two\nlines\tand a tab", "👩‍🔬 joined by U+200D", "naïve — “quotes”", "שלום"]) {
    assert.equal(visible(harmless), harmless);
  }
  assert.equal(visible(undefined), "");
});

test("names have an end and are never nothing", () => {
  assert.equal(oneLine("x".repeat(10_000)).length, 200);
  assert.ok(oneLine("x".repeat(10_000)).endsWith("…"));
  assert.equal(oneLine(""), "(no name)");
  assert.equal(oneLine(" \n "), "(no name)");
  assert.equal(oneLine(undefined, 10, ""), "");
  assert.equal(oneLine("a\n  b"), "a b");
  // A character of two units is not cut in half.
  assert.equal(oneLine("😀".repeat(5), 3), "😀😀…");
});

test("what travels is told in powers of ten", () => {
  assert.deepEqual([0, 999, 3100, 498e6, 1.245e9, 999.9e6].map(megabytes), ["0 bytes", "999 bytes", "3.1 kB", "498 MB", "1.25 GB", "1 GB"]);
});

test("jobs of the same minute have different short ids", () => {
  assert.equal(shortId("01a20770-6ab6-73a6-bccb-b21ae4f37fa8"), "…e4f37fa8");
  assert.deepEqual([shortId("short"), shortId(undefined)], ["short", ""]);
});

test("numbers keep four digits", () => {
  const written = [[0.123456, "0.1235"], [1.23456e-5, "1.235e−5"], [0, "0"], [-2.5, "−2.5"], [1234567, "1.235e6"], [NaN, "–"], [undefined, "–"], [Infinity, "∞"]];
  for (const [value, text] of written) assert.equal(number(value), text);
});

test("times and sizes have units", () => {
  assert.deepEqual([0, 59.4, 65, 3600, 90000, NaN].map(duration), ["0 s", "59 s", "1 min 05 s", "1 h 00 min", "1 d 1 h", "–"]);
  assert.deepEqual([0.0042, 0.9999, 1.2345, 75].map(briefly), ["4.2 ms", "1 s", "1.23 s", "1 min 15 s"]);
  assert.deepEqual([-3, 59, 61, 7200, 864000].map(age), ["0 s", "59 s", "1 min", "2 h", "10 d"]);
  assert.deepEqual([0, 1023, 1536, "3400000000"].map(bytes), ["0 bytes", "1023 bytes", "1.5 KiB", "3.17 GiB"]);
  assert.deepEqual([0, 999, "1234567", -1000].map(count), ["0", "999", "1\u202f234\u202f567", "−1\u202f000"]);
  assert.deepEqual([2.5, 0.25, 0, NaN].map(pace), ["2.5 steps/s", "4 s/step", "–", "–"]);
});

test("a time says its zone, and the zone is that of its day", () => {
  const ahead = (minutes) => ({ getTimezoneOffset: () => -minutes });
  assert.deepEqual([0, 60, 330, -210, -600].map(ahead).map(zone), ["UTC", "UTC+1", "UTC+5:30", "UTC−3:30", "UTC−10"]);
  const before = process.env.TZ;
  process.env.TZ = "Europe/Berlin";
  assert.equal(dateAndTime("2026-01-02T23:04:05Z"), "2026-01-03 00:04:05 UTC+1");
  assert.deepEqual(local("2026-07-02T23:04:05.678Z"), { day: "2026-07-03", time: "01:04:05", zone: "UTC+2" });
  process.env.TZ = before ?? "";
  assert.deepEqual([dateAndTime(undefined), dateAndTime("x"), local("")], ["–", "–", null]);
});
