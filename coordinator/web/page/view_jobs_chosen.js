// Several jobs of the table that somebody has chosen, and what may be done with all of them at once.
import { call } from "./api.js";
import { question } from "./dialogs.js";
import { element, isolated, setText, show } from "./dom.js";
import { count, oneLine } from "./format.js";
import { chosenJobs } from "./jobs.js";
import { MOST_COMPARED, format } from "./routes.js";

/** Names that a question shows. */
const MOST_NAMED = 8;

/** A bar that is there while jobs are chosen. `changed()` is called when others are. */
export function chosenBar(app, changed) {
  const ids = new Set();
  const say = element("span", { role: "status" });
  const clear = () => {
    ids.clear();
    changed();
  };
  const button = (label, work) => element("button", { type: "button", onclick: () => work(chosenJobs(app.jobs, ids)) }, label);
  const compare = button("Compare", ({ toCompare }) => {
    location.hash = format({ view: "compare", ids: toCompare.slice(0, MOST_COMPARED).map((job) => job.jobId) });
  });
  const cancel = button("Cancel", ({ toCancel }) => ask({
    title: `Cancel ${several(toCancel)}?`, jobs: toCancel, after: "Their artifacts so far are kept.", yes: "Cancel them",
    one: (job) => call("JobService/CancelJob", { jobId: job.jobId }), done: clear,
  }));
  const remove = button("Delete", ({ toDelete }) => ask({
    title: `Delete ${several(toDelete)}?`, jobs: toDelete, after: "Their history and their artifacts are deleted with them.", yes: "Delete them",
    one: async (job) => {
      await call("JobService/DeleteJob", { jobId: job.jobId });
      app.deleteJobs([job.jobId]);
    },
    done: clear,
  }));
  const node = element("div", { class: "chosen card", role: "group", "aria-label": "Chosen jobs", hidden: true }, say, compare, cancel, remove,
    element("button", { type: "button", class: "plain", onclick: clear }, "Choose none"));
  return {
    node, ids,
    set(changes, on) {
      for (const id of changes) {
        if (on) ids.add(id);
        else ids.delete(id);
      }
      changed();
    },
    update() {
      for (const id of ids) if (!app.jobs.has(id)) ids.delete(id);
      const found = chosenJobs(app.jobs, ids);
      show(node, ids.size > 0);
      setText(say, `${several(found.all)} chosen`);
      show(compare, found.toCompare.length > 0);
      setText(compare, found.toCompare.length > MOST_COMPARED ? `Compare the first ${MOST_COMPARED}` : `Compare ${found.toCompare.length}`);
      for (const [control, jobs, word, method] of [[cancel, found.toCancel, "Cancel", "JobService/CancelJob"], [remove, found.toDelete, "Delete", "JobService/DeleteJob"]]) {
        show(control, jobs.length > 0 && app.may(method));
        setText(control, `${word} ${jobs.length}`);
      }
    },
  };
}

function several(jobs) {
  return `${count(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}`;
}

// All are tried: what fails is told at the end, and the question stays for those.
function ask({ title, jobs, after, yes, one, done }) {
  let rest = jobs;
  const names = rest.slice(0, MOST_NAMED).flatMap((job, place) => [place > 0 ? ", " : "", isolated(oneLine(job.name, 60))]);
  const more = rest.length > MOST_NAMED ? ` and ${count(rest.length - MOST_NAMED)} more` : "";
  question({
    title, text: [element("span", {}, ...names, more), after], yes, danger: true,
    act: async () => {
      const failed = [];
      for (const job of rest) {
        try {
          await one(job);
        } catch (error) {
          failed.push({ job, error });
        }
      }
      rest = failed.map(({ job }) => job);
      if (rest.length > 0) throw new Error(`${several(rest)} of ${count(jobs.length)}: ${failed[0].error.message}`);
      done();
    },
  });
}
