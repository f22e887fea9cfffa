import assert from "node:assert/strict";
import { test } from "node:test";
import { SHOWN_SECONDS, arcs, bars, fade, follow, newRing, nodeRadius, places, sends, shares } from "../ring.js";

const centre = { x: 100, y: 100 };
const member = (rank, workerId) => ({ rank, workerId, hostName: workerId, phase: "RANK_PHASE_TRAINING" });
const job = (epoch, workers, more = {}) => ({ ring: { epoch: String(epoch), members: workers.map((id, rank) => member(rank || undefined, id)) }, ...more });

test("ranks stand on the circle, apart from each other", () => {
  for (const count of [1, 2, 3, 7, 12, 64]) {
    const found = places(count, centre, 80);
    const node = nodeRadius(count, 80);
    for (const { x, y } of found) assert.ok(Math.abs(Math.hypot(x - 100, y - 100) - 80) < 1e-9);
    if (count > 1) assert.ok(Math.hypot(found[0].x - found[1].x, found[0].y - found[1].y) > 2 * node);
    assert.equal(arcs(count, centre, 80, node).length, count === 1 ? 0 : count);
  }
  assert.deepEqual(places(4, centre, 80).map(({ anchor }) => anchor), ["middle", "start", "middle", "end"]);
  assert.ok(arcs(3, centre, 80, 20).every((path) => /^M -?[\d.]+ -?[\d.]+ A 80 80 0 0 1 -?[\d.]+ -?[\d.]+$/u.test(path)));
});

test("a re-forming shows who left and who came, for a while", () => {
  let ring = follow(newRing(), job(1, ["a", "b", "c"]), 0);
  assert.deepEqual([ring.epoch, ring.lost.length, ring.history.length, ring.came.size], [1, 0, 0, 0]);
  ring = follow(ring, job(1, ["a", "b", "c"], { reasonCode: "JOB_REASON_REFORMING" }), 1);
  assert.equal(ring.broken, true);
  ring = follow(ring, job(2, ["a", "c", "d"]), 2);
  assert.equal(ring.broken, false);
  assert.deepEqual(ring.members.map(({ rank, workerId }) => `${rank}${workerId}`), ["0a", "1c", "2d"]);
  assert.deepEqual(ring.lost.map(({ workerId }) => workerId), ["b"]);
  assert.deepEqual([...ring.came.keys()], ["d"]);
  assert.deepEqual(ring.history.map(({ epoch, gone, fresh }) => [epoch, gone[0].workerId, fresh[0].workerId]), [[2, "b", "d"]]);
  // The same again changes nothing; who comes back is not lost any more; in time nobody is pointed out.
  assert.deepEqual(follow(ring, job(2, ["a", "c", "d"]), 3).history, ring.history);
  const back = follow(ring, job(3, ["a", "b", "c", "d"]), 5);
  assert.deepEqual([back.lost.length, back.history.length], [0, 2]);
  assert.deepEqual([fade(ring, 2 + SHOWN_SECONDS).lost.length, fade(ring, 2 + SHOWN_SECONDS).came.size], [0, 0]);
});

test("a job without a ring has none, and keeps what happened", () => {
  const ring = follow(follow(newRing(), job(1, ["a", "b"]), 0), job(2, ["a"]), 1);
  const ended = follow(ring, { state: "JOB_STATE_SUCCEEDED" }, 2);
  assert.deepEqual([ended.members.length, ended.lost.length, ended.history.length], [0, 0, 1]);
});

test("bars compare the ranks with the longest", () => {
  const [one, other] = bars([{ computeSeconds: 0.5, exchangeSeconds: 0.1, waitSeconds: 0.4 }, { rank: 1, computeSeconds: 2, straggler: true }]);
  assert.deepEqual(one.shares, { compute: 0.25, exchange: 0.05, wait: 0.2 });
  assert.deepEqual([other.rank, other.straggler, other.shares.compute, other.wait], [1, true, 1, 0]);
  assert.deepEqual(bars([{ computeSeconds: "NaN" }])[0].shares, { compute: 0, exchange: 0, wait: 0 });
  assert.deepEqual(bars([]), []);
  // 64-bit numbers come as texts; an older worker says nothing of what travels.
  const [full] = bars([{ computeSeconds: 1, slowdown: 1.3, traffic: { hiddenExchangeSeconds: 0.1, sentBytes: "498000000", busBytesPerSecond: 1.25e9 } }]);
  assert.deepEqual([full.slowdown, full.hidden, full.sent, full.bandwidth], [1.3, 0.1, 498e6, 1.25e9]);
  assert.deepEqual([one.slowdown, one.hidden, one.sent, one.bandwidth], [0, 0, 0, 0]);
});

test("what the ring does on average, and what a rank sends", () => {
  const found = bars([{ computeSeconds: 0.5, exchangeSeconds: 0.1, waitSeconds: 0.4 }, { rank: 1, computeSeconds: 0.9, exchangeSeconds: 0.1 }]);
  assert.deepEqual(shares(found), { compute: 70, exchange: 10, wait: 20 });
  assert.equal(shares(found.slice(1)), null);
  assert.equal(shares(bars([{}, { rank: 1 }])), null);
  const size = (value) => `${value} B`;
  assert.equal(sends({ sent: 2e6, bandwidth: 5e8 }, size), "sends 2000000 B a step at 500000000 B/s");
  assert.equal(sends({ sent: 3100, bandwidth: 5e8 }, size), "sends 3100 B a step");
  assert.equal(sends({ sent: 0, bandwidth: 0 }, size), "");
});
