// "Run again": a job's file as it was, to change and to submit.
import { call, requestId } from "./api.js";
import { question } from "./dialogs.js";
import { element } from "./dom.js";

/** Asks what to run, beginning with a job's own file, and goes to the job that this makes. */
export function runAgain(app, job) {
  // Where callers are asked who they are, it is whoever submits it that a job belongs to.
  const value = app.session?.login === "open" ? job.jobFile : job.jobFile.replace(/^(\[queue\]\n)owner = .*\n/mu, "$1");
  // One job, however often it is asked for: another try of the same file may follow one whose answer was lost.
  let asked = { file: null, requestId: null };
  return question({
    title: "Run this job again?", yes: "Submit", wide: true,
    text: [element("span", {}, "Its file as it was. What you leave unchanged gives the same result. Pictures and files that it names as ",
      element("code", {}, "artifact://"), " are kept at the coordinator as long as the job is.")],
    fields: [{ label: "Job file", name: "file", rows: 18, spellcheck: "false", autocomplete: "off", value }],
    act: async ({ file }) => {
      if (asked.file !== file) asked = { file, requestId: requestId() };
      const made = await call("JobService/CreateJob", { jobFile: file, requestId: asked.requestId });
      location.hash = `#/jobs/${encodeURIComponent(made.job.jobId)}`;
    },
  });
}
