import assert from "node:assert/strict";
import { test } from "node:test";
import { LIST_DEFAULTS, MOST_COMPARED, format, parse } from "../routes.js";

test("addresses come back as they were", () => {
  const routes = [
    { view: "jobs", list: { ...LIST_DEFAULTS } },
    { view: "jobs", list: { q: 'a b&c="#"', state: "running", kind: "verification", owner: "ada & co", sort: "name", page: 3 } },
    { view: "job", id: "0e1c2b9a-1111-4222-8333-444455556666" },
    { view: "job", id: "a/../b?c#d" },
    { view: "workers" },
    { view: "queue" },
    { view: "sweep", id: "a/../b?c#d" },
    { view: "compare", ids: ["a", "b,&c", "d"] },
    { view: "compare", ids: [] },
  ];
  for (const route of routes) assert.deepEqual(parse(format(route)), route);
});

test("an address that is nothing breaks nothing", () => {
  for (const hash of ["", "#", "#/", "#/jobs", "#/jobs/"]) assert.equal(parse(hash).view, "jobs");
  for (const hash of ["#/else", "#/jobs/a/b", "#main"]) assert.equal(parse(hash).view, "unknown");
  assert.deepEqual(parse("#/jobs/%E0%A4%A"), { view: "job", id: "%E0%A4%A" });
  assert.deepEqual(parse("#/compare?jobs=a,,a,b").ids, ["a", "b"]);
  assert.equal(parse(`#/compare?jobs=${Array.from({ length: 99 }, (_, id) => id).join(",")}`).ids.length, MOST_COMPARED);
  for (const page of ["0", "-1", "x", "1e99", ""]) assert.equal(parse(`#/jobs?page=${page}`).list.page, 1);
  assert.equal(parse(`#/jobs?q=${"x".repeat(9999)}`).list.q.length, 500);
});
