// What a job left, to download: its result, and what came on the way; and what it was asked to do.
import { archiveAddress, fileAddress } from "./api.js";
import { element, isolated, keep, setAttribute, setText, show } from "./dom.js";
import { bytes, count, dateAndTime, oneLine, visible } from "./format.js";
import { cell, rowHead, section, table } from "./parts.js";
import { groupsOf } from "./results.js";

/** The files; `update(model)` shows those that there are. */
export function filesPart() {
  const title = element("p", { class: "quiet" });
  const all = element("a", { class: "button", download: true }, "Download all");
  const groups = element("div", { class: "groups" });
  const node = section("Artifacts", { hidden: true, class: "files" }, element("div", { class: "line" }, title, all), groups);
  function update(model) {
    const files = [...model.artifacts.values()];
    show(node, files.length > 0);
    setText(title, told(files));
    setAttribute(all, "href", archiveAddress(model.id));
    setAttribute(all, "title", `One archive (tar); \`ringtune fetch ${model.id}\` saves the same files`);
    keep(groups, groupsOf(files), (group) => group.key, makeGroup, (box, group) => box.update(model.id, group));
  }
  return { node, update };
}

function told(files) {
  const whole = files.reduce((sum, file) => sum + Number(file.size ?? 0), 0);
  return `${count(files.length)} ${files.length === 1 ? "file" : "files"}, ${bytes(whole)}`;
}

// The result is there to be seen, the other groups to be opened.
function makeGroup({ key, title }) {
  const isResult = key === "result";
  const rows = table(title, [{ label: "Name" }, { label: "Size", number: true }, { label: "Kept at" }], { class: "files stacked" });
  const frame = element("div", { class: "scrolled tall", tabindex: "0", role: "group", "aria-label": `Files: ${title}` }, rows.node);
  const sum = element("span", { class: "quiet" });
  const box = isResult ? element("div", { class: "result" }, element("h3", {}, title, " ", sum), frame)
    : element("details", {}, element("summary", {}, title, " ", sum), frame);
  box.update = (id, { files }) => {
    setText(sum, told(files));
    keep(rows.body, files, (file) => `${file.name} ${file.sha256}`, (file) => element("tr", { role: "row" },
      rowHead({ class: "name wide" }, element("a", { href: fileAddress(id, file.name), download: file.name }, isolated(oneLine(file.name)))),
      cell("", { class: "number" }, bytes(file.size)), cell("", { class: "short quiet" }, dateAndTime(file.createTime))));
  };
  return box;
}

/** The job file. */
export function specPart() {
  const text = element("pre", { class: "file", tabindex: "0", role: "group", "aria-label": "Job file" });
  const copied = element("span", { class: "quiet", role: "status" });
  const copy = element("button", {
    type: "button", onclick: async () => {
      try {
        await navigator.clipboard.writeText(shown);
        setText(copied, "Copied");
      } catch {
        // Browsers give the clipboard to safe places alone.
        getSelection().selectAllChildren(text);
        setText(copied, "Selected: copy it with the keyboard");
      }
    },
  }, "Copy");
  let shown = "";
  const node = section("Job file", { hidden: true }, element("details", {}, element("summary", {}, "Show what was asked for"),
    element("div", { class: "line" }, copy, copied), text));
  function update(model) {
    show(node, Boolean(model.job?.jobFile));
    if (!model.job?.jobFile) return;
    shown = model.job.jobFile;
    setText(text, visible(shown));
  }
  return { node, update };
}
