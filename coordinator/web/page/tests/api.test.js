import assert from "node:assert/strict";
import { test } from "node:test";
import { CallError, login, session } from "../api.js";

/** Has every request answered so. */
function answers(status, body, headers = {}) {
  globalThis.fetch = async () => new Response(body, { status, headers });
}

test("a refusal says its code, its text and when to come again", async () => {
  const body = JSON.stringify({ code: "resource_exhausted", message: "too many wrong tokens: try again in 42 s" });
  answers(429, body, { "retry-after": "42" });
  const refused = await session().catch((error) => error);
  assert.ok(refused instanceof CallError);
  assert.deepEqual([refused.code, refused.message, refused.wait, refused.passes],
    ["resource_exhausted", "too many wrong tokens: try again in 42 s", 42, true]);
});

test("answers that are not the coordinator's are told as they are", async () => {
  answers(502, "<h1>Bad gateway</h1>", { "retry-after": "Wed, 21 Oct 2026 07:28:00 GMT" });
  const refused = await session().catch((error) => error);
  assert.deepEqual([refused.code, refused.message, refused.wait], ["unavailable", "<h1>Bad gateway</h1>", 0]);
  answers(429, "");
  const often = await login("x").catch((error) => error);
  assert.deepEqual([often.code, often.message, often.wait], ["resource_exhausted", "the coordinator answers 429", 0]);
});
