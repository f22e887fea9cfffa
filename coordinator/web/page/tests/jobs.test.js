import assert from "node:assert/strict";
import { test } from "node:test";
import { chosenJobs, labelsOf, mergeJobs, ownerOf, pageOf, selectJobs, valuesOf } from "../jobs.js";
import { LIST_DEFAULTS } from "../routes.js";
import { jobKind, tellingReason } from "../words.js";

const job = (jobId, more = {}) => ({ jobId, state: "JOB_STATE_RUNNING", lastSequence: "1", updateTime: "2026-01-01T00:00:00Z", ...more });
const ids = (jobs) => jobs.map(({ jobId }) => jobId).join("");
const list = (changes) => ({ ...LIST_DEFAULTS, ...changes });

test("a list that comes late does not undo what the stream said", () => {
  const known = new Map();
  assert.deepEqual(mergeJobs(known, [job("a", { lastSequence: "9", step: "5" })]), ["a"]);
  assert.deepEqual(mergeJobs(known, [job("a", { lastSequence: "8", step: "4" }), job("b", { spec: { kind: "x" } })]), ["b"]);
  assert.equal(known.get("a").step, "5");
  assert.equal("spec" in known.get("b"), false);
  // Without a new event the later word counts: phases change in between.
  const later = job("a", { lastSequence: "9", step: "5", updateTime: "2026-01-01T00:00:01Z" });
  assert.deepEqual(mergeJobs(known, [later]), ["a"]);
  assert.deepEqual(mergeJobs(known, [job("a", { lastSequence: "9" })]), []);
  // Numbers, not texts: 10 is after 9.
  assert.deepEqual(mergeJobs(known, [job("a", { lastSequence: "10", step: "6" })]), ["a"]);
  assert.deepEqual(mergeJobs(known, undefined), []);
});

test("jobs are searched, filtered and sorted", () => {
  const jobs = [
    job("a", { name: "Cat", createTime: "2026-01-01T00:00:00Z", queue: { owner: "ada", labels: { project: "red hat" } }, step: "1", totalSteps: "10" }),
    job("b", { name: "dog", createTime: "2026-01-02T00:00:00Z", state: "JOB_STATE_FAILED", loss: 0.5 }),
    job("c", { createTime: "2026-01-03T00:00:00Z", queue: { owner: "bob" }, step: "9", totalSteps: "10", loss: 0.1 }),
  ];
  assert.equal(ids(selectJobs(jobs, list({}))), "cba");
  assert.equal(ids(selectJobs(jobs, list({ sort: "age" }))), "abc");
  assert.equal(ids(selectJobs(jobs, list({ sort: "name" }))), "cab");
  assert.equal(ids(selectJobs(jobs, list({ sort: "loss" }))), "cba");
  assert.equal(ids(selectJobs(jobs, list({ sort: "-progress" }))), "cab");
  assert.equal(ids(selectJobs(jobs, list({ sort: "-nonsense" }))), "cba");
  assert.equal(ids(selectJobs(jobs, list({ state: "active" }))), "ca");
  assert.equal(ids(selectJobs(jobs, list({ state: "failed" }))), "b");
  assert.equal(ids(selectJobs(jobs, list({ owner: "bob" }))), "c");
  assert.equal(ids(selectJobs(jobs, list({ q: "RED project=" }))), "a");
  assert.equal(ids(selectJobs(jobs, list({ q: "cat dog" }))), "");
  assert.deepEqual(valuesOf(jobs, ownerOf), ["ada", "bob"]);
});

test("pages hold all rows, each once", () => {
  const rows = Array.from({ length: 101 }, (_, place) => place);
  assert.deepEqual([1, 2, 3].flatMap((page) => pageOf(rows, page).rows), rows);
  assert.deepEqual(pageOf(rows, 99), { rows: [100], page: 3, pages: 3 });
  assert.deepEqual(pageOf([], 1), { rows: [], page: 1, pages: 1 });
});

test("a verification is no training, and a kind is known without a spec", () => {
  const known = new Map();
  mergeJobs(known, [
    job("a", { kind: "textual_inversion", spec: { kind: "textual_inversion" } }), job("b", { kind: "textual_inversion", verification: { jobId: "a" } }),
  ]);
  const jobs = [...known.values()];
  assert.deepEqual(jobs.map(jobKind), ["textual inversion", "verification"]);
  assert.equal(ids(selectJobs(jobs, list({ kind: "textual inversion" }))), "a");
  assert.equal(ids(selectJobs(jobs, list({ kind: "verification" }))), "b");
  assert.equal(ids(selectJobs(jobs, list({ q: "verif" }))), "b");
  assert.equal(ids(selectJobs(jobs, list({ sort: "-kind" }))), "ba");
});

test("a list says why a job waits or failed, and nothing that its state says", () => {
  const reason = (reasonCode) => tellingReason({ reasonCode, stateReason: "so" });
  for (const code of ["JOB_REASON_WAITING_FOR_WORKERS", "JOB_REASON_RANK_FAILED", "JOB_REASON_REFORMING", "JOB_REASON_STOPPED_EARLY", "JOB_REASON_OF_TOMORROW", undefined]) {
    assert.equal(reason(code), "so", code);
  }
  for (const code of ["JOB_REASON_TRAINING", "JOB_REASON_COMPLETED"]) assert.equal(reason(code), "");
  assert.equal(tellingReason({}), "");
});

test("several chosen jobs are those that something can be done with", () => {
  const jobs = new Map([job("a", { loss: 0.5 }), job("b", { state: "JOB_STATE_FAILED" }), job("c")].map((one) => [one.jobId, one]));
  const chosen = chosenJobs(jobs, new Set(["a", "b", "gone"]));
  assert.deepEqual([chosen.all, chosen.toCancel, chosen.toDelete, chosen.toCompare].map(ids), ["ab", "a", "b", "a"]);
  assert.deepEqual(labelsOf(job("a", { queue: { labels: { z: "1", a: "" } } })), ["a=", "z=1"]);
});
