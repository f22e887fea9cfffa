import assert from "node:assert/strict";
import { test } from "node:test";
import { Stream } from "../stream.js";

/** A browser whose streams and clock the test moves. */
function browser() {
  const looks = { is: true };
  const opened = [];
  const timers = new Map();
  let number = 0;
  const heard = [];
  const say = (name) => (data) => heard.push([name, data]);
  const handlers = Object.fromEntries(["jobs", "cluster", "event", "deleted", "missed", "progress", "timings", "opened", "connected", "broken", "ended", "failed"].map((name) => [name, say(name)]));
  const stream = new Stream(handlers, {
    open(address) {
      const listeners = new Map();
      const source = {
        address, closed: false, close: () => { source.closed = true; },
        addEventListener: (name, work) => listeners.set(name, [...(listeners.get(name) ?? []), work]),
        say: (name, data) => listeners.get(name)?.forEach((work) => work({ data: JSON.stringify(data) })),
        open: () => source.onopen(),
        breaks: () => { source.onerror({}); listeners.get("error")?.forEach((work) => work({})); },
      };
      opened.push(source);
      return source;
    },
    later(work, after) { timers.set(++number, { work, after }); return number; },
    never: (timer) => timers.delete(timer),
    shown: () => looks.is,
  });
  const pass = (after) => {
    for (const [timer, { work, after: at }] of [...timers]) if (at <= after && timers.delete(timer)) work();
  };
  return { stream, looks, opened, heard, pass, timers, words: (name) => heard.filter(([found]) => found === name).map(([, data]) => data) };
}

test("a stream that breaks is opened again after the last event, and the bar goes when it is back", () => {
  const { stream, opened, pass, words } = browser();
  stream.follow("j", 7);
  assert.equal(opened[0].address, "/api/events?job=j&after=7");
  opened[0].open();
  opened[0].say("event", { sequence: "8" });
  opened[0].say("events", { events: [{ sequence: "9" }, { sequence: "12" }] });
  opened[0].breaks();
  assert.equal(opened[0].closed, true);
  pass(500);
  assert.equal(opened[1].address, "/api/events?job=j&after=12");
  opened[1].breaks();
  pass(2000);
  assert.deepEqual(words("connected"), [true, false]);
  opened[2].open();
  assert.deepEqual(words("connected"), [true, false, true]);
  assert.deepEqual(words("opened"), [false, true]);
  assert.equal(words("broken").length, 2);
  // What an old stream still says is not heard.
  opened[0].say("event", { sequence: "99" });
  assert.equal(words("event").length, 2);
});

test("a short break is not worth a word", () => {
  const { stream, opened, pass, words } = browser();
  stream.follow();
  opened[0].open();
  opened[0].say("end", { reason: "time" });
  pass(500);
  opened[1].open();
  pass(10_000);
  assert.deepEqual(words("connected"), [true, true]);
  assert.deepEqual(words("ended"), ["time"]);
});

test("one stream at most is open, and none while it rests", () => {
  const { stream, opened, pass, timers } = browser();
  stream.follow("a", 1);
  stream.follow("b", 2);
  stream.follow(null);
  stream.restart();
  assert.deepEqual(opened.map((source) => source.closed), [true, true, true, false]);
  opened[3].open();
  stream.rest();
  assert.ok(opened.every((source) => source.closed));
  pass(60_000);
  assert.deepEqual([opened.length, timers.size], [4, 0]);
  stream.resume();
  stream.resume();
  assert.equal(opened.length, 5);
});

test("a try that waits is forgotten when something else is followed", () => {
  const { stream, opened, pass } = browser();
  stream.follow("a", 1);
  opened[0].breaks();
  stream.follow("b", 2);
  opened[1].open();
  pass(10_000);
  assert.deepEqual(opened.map((source) => source.address), ["/api/events?job=a&after=1", "/api/events?job=b&after=2"]);
});

test("a login that ended stops it", () => {
  const { stream, opened, pass } = browser();
  stream.handlers.ended = () => stream.rest();
  stream.follow();
  opened[0].open();
  opened[0].say("end", { reason: "login" });
  pass(60_000);
  assert.equal(opened.length, 1);
});

test("a job that cannot be followed is said, and all others are followed", () => {
  const { stream, opened, words } = browser();
  stream.follow("gone", 3);
  opened[0].open();
  opened[0].say("error", { code: "not_found", message: "no such job" });
  assert.deepEqual(words("failed"), [{ code: "not_found", message: "no such job" }]);
  assert.equal(opened.at(-1).address, "/api/events");
});

test("tries become rarer, up to a bound", () => {
  const { stream, opened, pass, timers } = browser();
  stream.follow();
  const pauses = [];
  for (let attempt = 0; attempt < 8; attempt += 1) {
    opened.at(-1).breaks();
    pauses.push(timers.get(stream.timers.get("again")).after);
    pass(10_000);
  }
  assert.deepEqual(pauses, [500, 1000, 2000, 4000, 8000, 10000, 10000, 10000]);
});

test("a page that is opened where nobody looks listens once somebody does, and reads what it has missed", () => {
  const { stream, looks, opened, words } = browser();
  looks.is = false;
  stream.follow(null);
  stream.follow("j", 7);
  stream.restart();
  assert.equal(opened.length, 0);
  looks.is = true;
  stream.resume();
  assert.deepEqual(opened.map((source) => source.address), ["/api/events?job=j&after=7"]);
  opened[0].open();
  assert.deepEqual(words("opened"), [true]);
});

test("deleted jobs are told, and that some may have been missed", () => {
  const { stream, opened, words } = browser();
  stream.follow(null);
  opened[0].open();
  opened[0].say("deleted", { jobIds: ["a", "b"] });
  opened[0].say("missed", {});
  assert.deepEqual([words("deleted"), words("missed").length], [[["a", "b"]], 1]);
});
