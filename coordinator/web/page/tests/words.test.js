import test from "node:test";
import assert from "node:assert/strict";
import { waitingText } from "../words.js";

test("a job that waits says who is before it and when it may start", () => {
  const at = (seconds) => new Date(seconds * 1000).toISOString();
  const text = (waiting) => waitingText({ waiting }, 1000);
  assert.equal(waitingText({}, 1000), "");
  assert.equal(text({ estimatedStartTime: at(1000) }), "; first in the queue; may start now");
  assert.equal(text({ ahead: 1, estimatedStartTime: at(1090) }), "; 1 job ahead; may start in 1 min 30 s");
  assert.equal(text({ ahead: 1234 }), "; 1 234 jobs ahead; nobody can say when it starts");
});
