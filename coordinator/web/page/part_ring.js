// The ring of a job: a drawing, a table of its ranks, and what became of it while somebody looked.
import { now } from "./api.js";
import { drawn, element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { age, briefly, bytes, count, megabytes, oneLine, shortId } from "./format.js";
import { preparing } from "./job_model.js";
import { badge, cell, progressBar, rowHead, section, setBadge, setProgress, table } from "./parts.js";
import { MOST_NAMED, arcs, bars, fade, nodeRadius, places, sends, shares } from "./ring.js";
import { rankPhase, stage } from "./words.js";
import { called, distinctions } from "./workers.js";

const SIZE = { width: 480, height: 316 };
const CENTRE = { x: 240, y: 156 };
const RADIUS = 96;

/** The part; `update(model)` shows the ring as it is. */
export function ringPart() {
  const svg = drawn("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img" });
  const frame = element("div", { class: "ring" }, svg);
  const rows = table("Ranks of the ring", ["Rank", "Phase", "Doing", "A step of it"].map((label) => ({ label })), { class: "ranks stacked" });
  const legend = element("div", { class: "legend", hidden: true }, element("span", { class: "compute" }, "compute"),
    element("span", { class: "exchange" }, "exchange"), element("span", { class: "wait" }, "wait"));
  const average = element("p", { class: "quiet average", hidden: true });
  const changes = element("ul", { class: "changes" });
  const node = section("Ring", { hidden: true }, frame, legend, average, element("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Table of the ranks" }, rows.node), changes);

  function update(model) {
    const ring = fade(model.ring, now());
    const timings = new Map(bars([...model.timings.values()]).map((bar) => [bar.rank, bar]));
    const doing = new Map(preparing(model).map((rank) => [rank.rank ?? 0, rank]));
    const distinct = distinctions([...ring.members, ...ring.lost, ...ring.history.flatMap((change) => [...change.gone, ...change.fresh])]);
    const nameOf = (member, longest) => called(member, distinct.get(member.workerId), longest);
    show(node, ring.members.length > 0 || ring.history.length > 0);
    show(frame, ring.members.length > 0);
    show(legend, timings.size > 0);
    const all = shares([...timings.values()]);
    show(average, all !== null);
    if (all) setText(average, `A step, on average: ${all.compute} % computing, ${all.exchange} % exchanging, ${all.wait} % waiting`);
    draw(svg, frame, ring, { timings, nameOf });
    keep(rows.body, ring.members, (member) => `${member.rank} ${member.workerId}`, makeRank,
      (row, member) => updateRank(row, member, { timing: timings.get(member.rank), doing: doing.get(member.rank), name: nameOf(member, 60) }));
    keep(changes, ring.history, (change) => change.epoch, () => element("li", {}), (line, change) => tell(line, change, nameOf));
  }
  return { node, update };
}

function draw(svg, frame, ring, { timings, nameOf }) {
  const size = ring.members.length;
  const node = nodeRadius(size, RADIUS);
  setAttribute(frame, "class", ring.broken ? "ring broken" : "ring");
  setAttribute(svg, "aria-label", describe(ring, nameOf));
  const parts = arcs(size, CENTRE, RADIUS, node).flatMap((path, rank) => [
    drawn("path", { d: path, class: "arc" }), ...(size <= MOST_NAMED ? [arrow(rank, size, node)] : []),
  ]);
  const under = ring.broken ? "is formed anew …" : `${size} ${size === 1 ? "rank" : "ranks"}`;
  parts.push(drawn("text", { x: CENTRE.x, y: CENTRE.y - 2, class: "epoch" }, `epoch ${count(ring.epoch)}`),
    drawn("text", { x: CENTRE.x, y: CENTRE.y + 17, class: "under" }, under));
  const where = places(size, CENTRE, RADIUS);
  ring.members.forEach((member, place) => {
    const straggler = timings.get(member.rank)?.straggler;
    const kinds = ["node", rankPhase(member.phase), ring.came.has(member.workerId) && "came", straggler && "straggler"];
    const words = [rankPhase(member.phase), ring.came.has(member.workerId) && "new"];
    parts.push(rankNode(where[place], node, { kinds, words, member, nameOf, straggler, named: size <= MOST_NAMED, text: String(member.rank) }));
  });
  ring.lost.slice(0, 4).forEach((member, place) => {
    const at = { x: 24, y: 34 + 48 * place, sine: 1, cosine: 0, anchor: "start" };
    parts.push(rankNode(at, 13, { kinds: ["node", "gone"], words: ["left the ring"], member, nameOf, named: true, text: "✕" }));
  });
  svg.replaceChildren(...parts);
}

function rankNode(at, radius, { kinds, words, member, nameOf, straggler, named, text }) {
  const group = drawn("g", { class: kinds.filter(Boolean).join(" "), "data-worker": member.workerId },
    drawn("title", {}, `rank ${member.rank}: ${nameOf(member, 80)}, ${words.filter(Boolean).join(", ")}`),
    drawn("circle", { cx: at.x, cy: at.y, r: radius }));
  if (radius >= 9) group.append(drawn("text", { x: at.x, y: at.y, class: "rank" }, text));
  if (!named) return group;
  const x = at.anchor === "middle" ? at.x : at.x + Math.sign(at.sine) * (radius + 7);
  const y = at.anchor === "middle" ? at.y + (at.cosine < 0 ? -radius - 20 : radius + 15) : at.y - 2;
  group.append(drawn("text", { x, y, "text-anchor": at.anchor }, oneLine(nameOf(member, 8), 24)),
    drawn("text", { x, y: y + 13, "text-anchor": at.anchor, class: straggler ? "straggling" : "phase" },
    straggler ? "◆ straggler" : words.filter(Boolean).join(", ")));
  return group;
}

// The tip of the arc to the next rank: a triangle half-way.
function arrow(rank, size) {
  const turn = (2 * Math.PI * (rank + 0.5)) / size;
  const [x, y] = [CENTRE.x + RADIUS * Math.sin(turn), CENTRE.y - RADIUS * Math.cos(turn)];
  return drawn("path", { class: "arrow", d: "M-5 -5L6 0L-5 5Z", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) rotate(${((turn * 180) / Math.PI).toFixed(1)})` });
}

function describe(ring, nameOf) {
  const names = ring.members.slice(0, MOST_NAMED).map((member) => `rank ${member.rank} ${nameOf(member, 40)} ${rankPhase(member.phase)}`);
  const lost = ring.lost.map((member) => `${nameOf(member, 40)} left`);
  return `Ring of epoch ${ring.epoch}${ring.broken ? ", is formed anew" : ""}: ${[...names, ...lost].join(", ")}`;
}

function makeRank(member) {
  const measured = element("div", { hidden: true }, element("div", { class: "bars", "aria-hidden": "true" },
    element("span", { class: "compute" }), element("span", { class: "exchange" }), element("span", { class: "wait" })), element("div", { class: "quiet" }), element("div", { class: "quiet" }));
  return element("tr", { role: "row", "data-rank": member.rank },
    rowHead({ class: "wide" }, `${member.rank} `, isolated(""), " ", element("span", { class: "quiet mono" }, shortId(member.workerId))),
    cell("", {}, badge()), cell("", {}, element("div", { hidden: true }, element("span", { class: "quiet" }), progressBar())),
    cell("", { class: "wide" }, measured, element("span", { class: "straggles", hidden: true }, "◆ straggler: the others wait for it")));
}

const MARKS = { training: "▶", waiting: "◷", ready: "◑", preparing: "◔", assigned: "◷", finished: "✓", done: "✓", failed: "✕", stopped: "⊘" };

function updateRank(row, member, { timing, doing, name }) {
  const [host, phase, busy, step] = row.children;
  setText(host.children[0], name);
  const word = rankPhase(member.phase);
  setBadge(phase.firstChild, word, MARKS[word] ?? "·");
  const [what, bar] = busy.firstChild.children;
  show(busy.firstChild, doing !== undefined);
  if (doing) {
    setText(what, stage(doing.stage));
    setProgress(bar, `Rank ${member.rank} ${stage(doing.stage)}`, Number(doing.done ?? 0), Number(doing.total ?? 0),
      doing.stage === "PROGRESS_STAGE_DOWNLOAD" ? bytes : count);
  }
  const [measured, straggles] = step.children;
  show(measured, timing !== undefined);
  show(straggles, timing?.straggler === true);
  if (!timing) return;
  const [strip, text, sent] = measured.children;
  for (const part of strip.children) part.style.setProperty("--share", timing.shares[part.className].toFixed(4));
  const hidden = timing.hidden > 0 ? ` (hidden: ${briefly(timing.hidden)})` : "";
  setText(text, `compute ${briefly(timing.compute)} · exchange ${briefly(timing.exchange)}${hidden} · wait ${briefly(timing.wait)}`);
  setText(sent, sends(timing, megabytes));
  if (timing.straggler) setText(straggles, `◆ straggler${timing.slowdown > 0 ? `, ${timing.slowdown.toFixed(1)} times as slow` : ""}: the others wait for it`);
}

function tell(line, change, nameOf) {
  const names = (members) => members.map((member) => nameOf(member, 40)).join(", ");
  const said = [change.gone.length > 0 && `${names(change.gone)} left`, change.fresh.length > 0 && `${names(change.fresh)} came`].filter(Boolean);
  setText(line, `epoch ${count(change.epoch)}, ${age(now() - change.now)} ago: ${said.join("; ") || "the same workers"}; ${count(change.members)} ranks now`);
}
