// What a job left, to download; and what it was asked to do.
import { fileAddress } from "./api.js";
import { element, isolated, keep, setText, show } from "./dom.js";
import { bytes, dateAndTime, oneLine, visible } from "./format.js";
import { cell, rowHead, section, table } from "./parts.js";
import { jobFile } from "./toml.js";

/** The files; `update(model)` shows those that there are. */
export function filesPart() {
  const rows = table("Artifacts", [{ label: "Name" }, { label: "Size", number: true }, { label: "Kept at" }], { class: "files stacked" });
  const title = element("p", { class: "quiet" });
  const node = section("Artifacts", { hidden: true }, title, element("div", { class: "scrolled tall", tabindex: "0", role: "group", "aria-label": "Table of the artifacts" }, rows.node));
  function update(model) {
    const files = [...model.artifacts.values()].sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    show(node, files.length > 0);
    const whole = files.reduce((sum, file) => sum + Number(file.size ?? 0), 0);
    setText(title, `${files.length} ${files.length === 1 ? "file" : "files"}, ${bytes(whole)}; \`ringtune fetch ${model.id}\` saves all`);
    keep(rows.body, files, (file) => `${file.name} ${file.sha256}`, (file) => element("tr", { role: "row" },
      rowHead({ class: "name wide" }, element("a", { href: fileAddress(model.id, file.name), download: file.name }, isolated(oneLine(file.name)))),
      cell("", { class: "number" }, bytes(file.size)), cell("", { class: "short quiet" }, dateAndTime(file.createTime))));
  }
  return { node, update };
}

/** The job file. */
export function specPart() {
  const text = element("pre", { class: "file", tabindex: "0", role: "group", "aria-label": "Job file" });
  const node = section("Job file", { hidden: true }, element("details", {}, element("summary", {}, "Show what was asked for"), text));
  function update(model) {
    show(node, model.job?.spec !== undefined);
    if (model.job?.spec) setText(text, visible(jobFile(model.job.spec, model.job.queue)));
  }
  return { node, update };
}
