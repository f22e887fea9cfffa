// What happened to a job: changes of state and log lines, the newest visible.
import { element, isolated, keep, show } from "./dom.js";
import { dateAndTime, local, visible } from "./format.js";
import { section } from "./parts.js";
import { jobState, logLevel } from "./words.js";

/** One line is as long as its writer likes; this much is shown. */
const LONGEST_LINE = 4000;

/** The part; `update(model)` adds new lines. */
export function logPart() {
  const list = element("ol", {});
  const log = element("div", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Events of the job" }, list);
  const node = section("Events", { hidden: true }, log);
  function update(model) {
    show(node, model.lines.length > 0);
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    keep(list, daysAnd(model.lines), (line) => line.day ?? line.sequence, (line) => (line.day ? makeDay(line) : makeLine(line)));
    if (atEnd || log.dataset.filled === undefined) log.scrollTop = log.scrollHeight;
    if (!node.hidden) log.dataset.filled = "";
  }
  return { node, update };
}

// Lines say their time alone: above the first of each day is the day, and in which zone all of them are.
function daysAnd(lines) {
  let before = null;
  return lines.flatMap((line) => {
    const at = local(line.time);
    const day = at === null ? before : `${at.day}, times in ${at.zone}`;
    const both = day === before ? [line] : [{ day }, line];
    before = day;
    return both;
  });
}

function makeDay({ day }) {
  return element("li", { class: "day" }, day);
}

function makeLine(line) {
  const level = line.level === "state" ? "state" : logLevel(line.level);
  const rank = line.rank === undefined ? "" : `rank ${line.rank}: `;
  const text = line.change ? changeText(line.change) : visible((line.message ?? "").slice(0, LONGEST_LINE));
  return element("li", { class: `is-${level}` }, element("time", { datetime: line.time, title: dateAndTime(line.time) }, local(line.time)?.time ?? "–"),
    element("span", { class: "level" }, level), element("span", { class: "text" }, rank, isolated(text)));
}

function changeText(change) {
  const reason = visible((change.reason ?? "").slice(0, LONGEST_LINE));
  return `${jobState(change.to)}${reason === "" ? "" : `: ${reason}`}`;
}
