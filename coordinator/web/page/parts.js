// Small things that several views show.
import { element, isolated, setAttribute, setText } from "./dom.js";
import { count, oneLine } from "./format.js";
import { jobMark, jobState } from "./words.js";

/** A state as a mark and a word. */
export function badge(word = "", mark = "") {
  const node = element("span", { class: "state" }, element("span", { class: "mark", "aria-hidden": "true" }), element("span"));
  setBadge(node, word, mark);
  return node;
}

export function setBadge(node, word, mark) {
  setAttribute(node, "class", `state ${/^[a-z]+/u.exec(word)?.[0] ?? ""}`);
  setText(node.firstChild, mark);
  setText(node.lastChild, word);
}

/** The state of a job. */
export function jobBadge(job) {
  return badge(jobState(job?.state), jobMark(job?.state));
}

export function setJobBadge(node, job) {
  setBadge(node, jobState(job.state), jobMark(job.state));
}

/** A bar with its numbers beside it: 12 / 100. */
export function progressBar() {
  return element("div", { class: "progress" }, element("progress", { max: 1 }), element("span", { class: "number" }));
}

/** `label` says what is done; `total` of 0: nobody knows how much there is. `say` writes the two. */
export function setProgress(node, label, done, total, say = count) {
  const [bar, text] = node.children;
  setAttribute(bar, "aria-label", label);
  setAttribute(bar, "value", total > 0 ? Math.min(1, done / total).toFixed(4) : 0);
  setText(text, total > 0 ? `${say(done)} / ${say(total)}` : say(done));
}

/** A link to a job, by its name. */
export function jobLink(jobId, name) {
  return element("a", { href: `#/jobs/${encodeURIComponent(jobId)}`, class: "clipped" }, isolated(oneLine(name)));
}

/** A job's labels, each in a box; a click calls `choose`, where it is given. */
export function labels(texts, choose) {
  return texts.map((text) => {
    const shown = isolated(oneLine(text, 60));
    return choose ? element("button", { type: "button", class: "label", title: "Show jobs with this label", onclick: () => choose(text) }, shown)
      : element("span", { class: "label" }, shown);
  });
}

/** A table whose rows become cards on a narrow screen; its roles are said, as they would be lost with its layout. */
export function table(caption, columns, attributes = {}) {
  const heads = columns.map(({ label, key, narrow, number }) => element("th", {
    scope: "col", role: "columnheader", "data-key": key, class: number ? "number" : null,
  }, narrow ? element("span", { class: "unseen" }, label) : label));
  const body = element("tbody", { role: "rowgroup" });
  const node = element("table", { role: "table", ...attributes }, element("caption", { class: "unseen" }, caption),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads)), body);
  return { node, heads, body };
}

/** A cell; `label` stands before it where there are no columns. */
export function cell(label, attributes, ...children) {
  return element("td", { role: "cell", "data-label": label || null, ...attributes }, ...children);
}

/** The cell that names its row. */
export function rowHead(attributes, ...children) {
  return element("th", { role: "rowheader", scope: "row", ...attributes }, ...children);
}

/** A part of a page under its own heading. */
export function section(title, attributes, ...children) {
  const id = `part-${title.toLowerCase().replace(/[^a-z]+/gu, "-")}`;
  return element("section", { "aria-labelledby": id, ...attributes, class: `card part ${attributes?.class ?? ""}`.trim() },
    element("h2", { id }, title), ...children);
}
