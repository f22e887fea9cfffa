// Sweeps and the queue in numbers. All of it is pure.

/** The options that differ between the jobs of a sweep, in order. */
export function optionsOf(sweep) {
  return [...new Set((sweep.points ?? []).flatMap((point) => Object.keys(point.settings ?? {})))].sort();
}

/** Whether a job of a sweep has ended because others were better. */
export function isOut(point) {
  return point.reasonCode === "JOB_REASON_OUT_OF_SWEEP";
}

/** What a job's line in the picture of its sweep shows, as shares of its steps: how far it is, and where jobs are compared. */
export function ladder(point, rungs) {
  const total = Number(point.totalSteps ?? 0);
  const share = (step) => (total > 0 ? Math.min(1, Number(step ?? 0) / total) : 0);
  return { done: share(point.step), rungs: (rungs ?? []).map((rung) => share(rung.step)) };
}

/** What is to come of a sweep's halving, in words. */
export function rungsToCome(sweep) {
  const passed = Math.max(0, ...(sweep.points ?? []).map((point) => Number(point.passed ?? 0)));
  return (sweep.rungs ?? []).slice(passed).map((rung) => `the best ${rung.keep} after step ${rung.step}`);
}

const ORDER = ["JOB_STATE_RUNNING", "JOB_STATE_PREPARING", "JOB_STATE_PAUSED", "JOB_STATE_QUEUED"];

/** Jobs that have not ended, in the order of the queue: those that have ranks, those that are paused, and those that wait. */
export function inQueue(jobs) {
  const place = (job) => ORDER.indexOf(job.state);
  const chosen = [...jobs].filter((job) => place(job) >= 0);
  const ahead = (job) => Number(job.waiting?.ahead ?? 0);
  return chosen.sort((one, other) => place(one) - place(other) || ahead(one) - ahead(other) || (one.jobId < other.jobId ? -1 : 1));
}

/** How many ranks a job has; of one that waits, how many it needs. */
export function ranksOf(job) {
  if (job.ring) return (job.ring.members ?? []).length;
  return Number(job.waiting?.needed ?? 0);
}

/** "3 / 4", "2 – 4" of one that waits, or "2". `spec`: the wanted number is there. */
export function ranksText(job) {
  const has = ranksOf(job);
  const wanted = Number(job.spec?.cluster?.worldSize ?? 0);
  if (job.ring) return wanted > 0 ? `${has} / ${wanted}` : String(has);
  return wanted > has ? `${has} – ${wanted}` : String(has || "");
}

/**
 * Who has the ranks, as parts of a bar: one part for each owner, the largest first, with the eighth for all others; and the
 * ranks that are free. `idle`: workers without a rank.
 */
export function sharesOf(jobs, idle, most = 8) {
  const owners = new Map();
  for (const job of jobs) {
    if (!job.ring) continue;
    const owner = job.queue?.owner ?? "";
    owners.set(owner, (owners.get(owner) ?? 0) + ranksOf(job));
  }
  const sorted = [...owners].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
  const own = sorted.length > most ? sorted.slice(0, most - 1) : sorted;
  const rest = sorted.slice(own.length).reduce((sum, [, ranks]) => sum + ranks, 0);
  const parts = own.map(([owner, ranks]) => ({ owner, ranks }));
  if (rest > 0) parts.push({ owner: null, ranks: rest });
  const all = parts.reduce((sum, part) => sum + part.ranks, 0) + idle;
  let from = 0;
  const placed = parts.map((part) => {
    const place = { ...part, from: all > 0 ? from / all : 0, share: all > 0 ? part.ranks / all : 0 };
    from += part.ranks;
    return place;
  });
  return { parts: placed, idle, all };
}
