// The ring of a job: where its ranks are drawn, and what changes from one membership to the next. All of it is pure.

/** How long a lost member and a newcomer are pointed out. */
export const SHOWN_SECONDS = 20;
/** Above so many ranks there is no room for names. */
export const MOST_NAMED = 12;

/**
 * Where `count` ranks stand on a circle of `radius` around `centre`, rank 0 on top and then clockwise. `anchor` says to
 * which side a name grows.
 */
export function places(count, centre, radius) {
  return Array.from({ length: count }, (_, rank) => {
    const turn = (2 * Math.PI * rank) / count;
    const [sine, cosine] = [Math.sin(turn), -Math.cos(turn)];
    const anchor = Math.abs(sine) < 0.2 ? "middle" : (sine > 0 ? "start" : "end");
    return { x: centre.x + radius * sine, y: centre.y + radius * cosine, sine, cosine, anchor };
  });
}

/** The radius of a rank's circle, so that neighbours leave a gap. */
export function nodeRadius(count, radius) {
  if (count < 2) return 22;
  return Math.max(2.5, Math.min(22, radius * Math.sin(Math.PI / count) * 0.62));
}

/** The arc from each rank to its next neighbour, as a path that ends before the neighbour's circle; none for one rank. */
export function arcs(count, centre, radius, node) {
  if (count < 2) return [];
  const gap = (node + 3) / radius;
  return Array.from({ length: count }, (_, rank) => {
    const at = (turn) => `${fixed(centre.x + radius * Math.sin(turn))} ${fixed(centre.y - radius * Math.cos(turn))}`;
    const from = (2 * Math.PI * rank) / count + gap;
    const to = (2 * Math.PI * (rank + 1)) / count - gap;
    const large = to - from > Math.PI ? 1 : 0;
    return `M ${at(from)} A ${radius} ${radius} 0 ${large} 1 ${at(to)}`;
  });
}

function fixed(value) {
  return Number(value.toFixed(2));
}

/** Nothing known of a ring yet. */
export function newRing() {
  return { epoch: 0, members: [], lost: [], came: new Map(), history: [], broken: false };
}

/**
 * The ring after a job was seen at `now` (seconds). Members that are not in the new membership are lost, and stay in sight
 * for a while; others came. `history` has a line for each membership that began while somebody looked, the newest first.
 */
export function follow(ring, job, now) {
  const broken = job.reasonCode === "JOB_REASON_REFORMING" || job.reasonCode === "JOB_REASON_WAITING_FOR_SPARE";
  const epoch = Number(job.ring?.epoch ?? 0);
  if (!job.ring) return { ...ring, members: [], lost: [], came: new Map(), broken: false, epoch: ring.epoch };
  const members = (job.ring.members ?? []).map((member) => ({ ...member, rank: member.rank ?? 0 }));
  const { lost: before, came: earlier } = fade(ring, now);
  if (epoch === ring.epoch || ring.members.length === 0) {
    return { ...ring, epoch, members, lost: before, came: earlier, broken };
  }
  const there = new Set(members.map((member) => member.workerId));
  const was = new Set(ring.members.map((member) => member.workerId));
  const gone = ring.members.filter((member) => !there.has(member.workerId));
  const fresh = members.filter((member) => !was.has(member.workerId));
  const came = new Map([...earlier, ...fresh.map((member) => [member.workerId, now])]);
  const lost = [...before.filter((member) => !there.has(member.workerId)), ...gone.map((member) => ({ ...member, since: now }))];
  const history = [{ epoch, gone, fresh, members: members.length, now }, ...ring.history].slice(0, 20);
  return { epoch, members, lost, came, history, broken };
}

/** The ring without those that have been pointed out for long enough. */
export function fade(ring, now) {
  const recent = (since) => now - since < SHOWN_SECONDS;
  return {
    ...ring,
    lost: ring.lost.filter((member) => recent(member.since)),
    came: new Map([...ring.came].filter(([, since]) => recent(since))),
  };
}

/** The seconds of a rank's step as shares of the longest step of all ranks. */
export function bars(timings) {
  const whole = (timing) => part(timing.computeSeconds) + part(timing.exchangeSeconds) + part(timing.waitSeconds);
  const longest = Math.max(0, ...timings.map(whole));
  return timings.map((timing) => {
    const [compute, exchange, wait] = [timing.computeSeconds, timing.exchangeSeconds, timing.waitSeconds].map(part);
    const of = (seconds) => (longest > 0 ? seconds / longest : 0);
    const traffic = timing.traffic ?? {};
    return {
      rank: timing.rank ?? 0, straggler: timing.straggler === true, slowdown: part(timing.slowdown), compute, exchange, wait,
      hidden: part(traffic.hiddenExchangeSeconds), sent: part(traffic.sentBytes), bandwidth: part(traffic.busBytesPerSecond),
      shares: { compute: of(compute), exchange: of(exchange), wait: of(wait) },
    };
  });
}

/** What of a step several ranks compute, exchange and wait on average, in whole percents; null of one rank, or of nothing. */
export function shares(found) {
  const sum = (key) => found.reduce((all, bar) => all + bar[key], 0);
  const all = sum("compute") + sum("exchange") + sum("wait");
  if (found.length < 2 || all <= 0) return null;
  const percent = (key) => Math.round((100 * sum(key)) / all);
  return { compute: percent("compute"), exchange: percent("exchange"), wait: percent("wait") };
}

/** Below so many bytes a step a bandwidth says how long the way is, not how wide. */
const LEAST_BYTES = 1e6;

/** What a rank sends, in words; empty where it does not say it. `size` makes words of bytes. */
export function sends({ sent, bandwidth }, size) {
  if (sent <= 0) return "";
  return `sends ${size(sent)} a step${sent >= LEAST_BYTES && bandwidth > 0 ? ` at ${size(bandwidth)}/s` : ""}`;
}

function part(given) {
  const value = Number(given ?? 0);
  return Number.isFinite(value) && value > 0 ? value : 0;
}
