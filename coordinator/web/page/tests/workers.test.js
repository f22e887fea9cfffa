import assert from "node:assert/strict";
import { test } from "node:test";
import { called, distinctions } from "../workers.js";

const worker = (workerId, hostName, address) => ({ workerId, hostName, address });
const told = (workers) => [...distinctions(workers).values()];

test("workers of one name are told apart, by where they are or by their ids", () => {
  assert.deepEqual(told([worker("a", "vm", "10.0.0.1:7072"), worker("b", "box", "10.0.0.2:7072")]), ["", ""]);
  assert.deepEqual(told([worker("a", "vm", "10.0.0.1:7072"), worker("b", "vm", "10.0.0.2:7072")]), ["10.0.0.1", "10.0.0.2"]);
  assert.deepEqual(told([worker("a", "vm", "127.0.0.1:1"), worker("b", "vm", "127.0.0.1:2")]), ["127.0.0.1:1", "127.0.0.1:2"]);
  assert.deepEqual(told([worker("01234567-a", "vm", ""), worker("01234567-b", "vm", "")]), ["…234567-a", "…234567-b"]);
  assert.deepEqual(told([worker("a", "vm", "[::1]:1"), worker("b", "vm", "[::2]:1")]), ["[::1]", "[::2]"]);
});

test("one worker that is there twice is one", () => {
  assert.deepEqual(told([worker("a", "vm", "h:1"), worker("a", "vm", "h:1")]), [""]);
});

test("what it is called is a text of others", () => {
  assert.equal(called(worker("a", "\u202evm", "h:1"), "h:1"), "‹U+202E›vm h:1");
  assert.equal(called(worker("a", "", "h:1")), "(no host name)");
});
