// One job: what it is, how far it is, and everything that it says.
import { runAgain } from "./again.js";
import { call, list, now, readJob, requestId } from "./api.js";
import { question } from "./dialogs.js";
import { batched, element, isolated, setAttribute, setText, show } from "./dom.js";
import { secondsLeft, stepsPerSecond } from "./eta.js";
import { age, count, dateAndTime, duration, millis, number, oneLine, pace, shortId, visible } from "./format.js";
import { addLines, applyEvents, applyJob, applyProgress, applySteps, applyTimings, newModel } from "./job_model.js";
import { labelsOf } from "./jobs.js";
import { chartsPart } from "./part_charts.js";
import { filesPart, specPart } from "./part_files.js";
import { logPart } from "./part_log.js";
import { picturesPart } from "./part_pictures.js";
import { ringPart } from "./part_ring.js";
import { textsPart } from "./part_texts.js";
import { jobBadge, jobLink, labels, setJobBadge } from "./parts.js";
import { format } from "./routes.js";
import { MOST_DETAIL, THINNED_POINTS, pointOf } from "./series.js";
import { VERIFICATION, hasEnded, jobKind, jobState, waitingText } from "./words.js";

/** Lines of the log that are read at first, of each sort. */
const LINES = 200;
const MOST_FILES = 5_000;

/** The view. It reads the job, then follows it from there. */
export function jobView(app, { id }) {
  let model = newModel(id);
  let left = false;
  let seen = { state: null, epoch: 0 };
  const head = jobHead(app, () => model);
  const [charts, pictures, texts, ring] = [chartsPart(readSteps), picturesPart(app), textsPart(app), ringPart()];
  const [log, files, spec] = [logPart(), filesPart(), specPart()];
  const parts = [charts, pictures, texts, ring, log, files, spec];
  const problem = element("p", { class: "notice problem", role: "alert", hidden: true });
  const body = element("div", { class: "parts" }, charts.node,
    element("div", { class: "column" }, pictures.node, texts.node, log.node, spec.node), element("div", { class: "column" }, ring.node, files.node));
  const node = element("div", {}, head.node, problem, body);

  const update = () => {
    if (left || !model.job) return;
    body.hidden = false;
    head.update(model);
    for (const part of parts) part.update(model);
    document.title = `${oneLine(model.job.name, 60)}: ${jobState(model.job.state)} · Ringtune`;
    tell();
  };
  const soon = batched(update);

  // All steps of a part, for a chart that shows it. Without them the thinned ones stay.
  async function readSteps(from, to) {
    try {
      const wanted = { jobId: id, afterStep: String(from - 1), pageSize: Math.min(MOST_DETAIL, to - from + 1) };
      return ((await call("JobService/ListSteps", wanted)).steps ?? []).map(pointOf);
    } catch (error) {
      app.isRefused(error);
      return [];
    }
  }

  // Only changes of state and of the ring are said aloud.
  const tell = () => {
    const { state } = model.job;
    if (seen.state !== null && seen.state !== state) app.announce(`${oneLine(model.job.name, 60)}: ${jobState(state)}`);
    if (seen.epoch !== 0 && model.ring.epoch > seen.epoch) app.announce(`The ring was formed anew: epoch ${model.ring.epoch}`);
    seen = { state, epoch: model.ring.epoch };
  };

  const read = async () => {
    const fresh = newModel(id);
    try {
      const job = await readJob(id);
      applyJob(fresh, job, now());
      // Only what comes after this is asked of the stream: what came before is read in a thinned form.
      fresh.sequence = Number(job.lastSequence ?? 0);
      fresh.ring = model.ring.epoch > 0 ? model.ring : fresh.ring;
      if (left) return;
      model = fresh;
      applyJob(model, job, now());
      show(problem, false);
      soon();
      app.stream.follow(id, fresh.sequence);
      const newest = (type) => call("JobService/ListEvents", { jobId: id, pageSize: LINES, filter: `type=${type}`, orderBy: "sequence desc" });
      const [steps, changes, lines, files] = await Promise.all([
        call("JobService/ListSteps", { jobId: id, maxPoints: THINNED_POINTS }), newest("state_change"), newest("log"),
        list("ArtifactService/ListArtifacts", "artifacts", { jobId: id, pageSize: 500 }, MOST_FILES),
      ]);
      if (left || model !== fresh) return;
      applySteps(model, steps.steps);
      addLines(model, [...(changes.events ?? []), ...(lines.events ?? [])]);
      for (const file of files.found) if (!model.artifacts.has(file.name)) model.artifacts.set(file.name, file);
      soon();
    } catch (error) {
      if (left || app.isRefused(error)) return;
      show(problem, true);
      show(head.node, model.job !== null);
      setText(problem, error.code === "not_found" ? "There is no such job. It may have been deleted." : error.message);
      if (error.passes) setTimeout(() => !left && app.isShown() && read(), 2000);
      else if (model.job === null) app.stream.follow(null);
    }
  };
  body.hidden = true;
  read();
  return {
    node, heading: head.heading, title: "Job", update: soon, tick: soon,
    leave() {
      left = true;
    },
    jobs(jobs) {
      const mine = jobs.find((job) => job.jobId === id);
      if (!mine || !model.job) return;
      applyJob(model, mine, now());
      soon();
    },
    events(events) {
      applyEvents(model, events.filter((event) => event.jobId === id));
      soon();
    },
    progress(progress) {
      applyProgress(model, progress);
      soon();
    },
    timings(timings) {
      applyTimings(model, timings);
      soon();
    },
    deleted(ids) {
      if (!ids.includes(id)) return;
      model = newModel(id);
      for (const part of [head.node, body]) show(part, false);
      show(problem, true);
      setText(problem, "This job was deleted.");
    },
    failed: () => read(),
    // Its end may have been missed.
    async refreshed() {
      if (!model.job) return;
      try {
        const { job } = await call("JobService/GetJob", { jobId: id });
        applyJob(model, job, now());
        soon();
      } catch (error) {
        if (!left && error.code === "not_found") read();
        else app.isRefused(error);
      }
    },
  };
}

function jobHead(app, current) {
  const name = isolated("");
  const heading = element("h1", { tabindex: "-1" }, name);
  const state = jobBadge(null);
  const tag = element("span", { class: "tag", hidden: true }, VERIFICATION);
  const actions = element("div", { class: "actions" });
  const reason = element("p", { class: "reason" });
  const bar = element("progress", { max: 1, value: 0 });
  const facts = element("dl", { class: "facts card" });
  const fact = (label, kind) => {
    const value = element("dd", { class: kind ?? null });
    const box = element("div", { hidden: true }, element("dt", {}, label), value);
    facts.append(box);
    return (content) => {
      show(box, content !== "" && content !== null && content !== undefined);
      if (typeof content === "string") setText(value, content);
      else if (content) value.replaceChildren(...content);
    };
  };
  const set = {
    steps: fact("Step"), left: fact("Time left"), pace: fact("Pace"), loss: fact("Loss"), took: fact("Running time"),
    owner: fact("Owner"), kind: fact("Kind"), precision: fact("Precision"), created: fact("Created"), of: fact("Verifies"), sweep: fact("Sweep"), validation: fact("Validation loss"),
    id: fact("Id", "mono"), labels: fact("Labels", "labels"),
  };
  const node = element("div", { class: "jobhead" }, element("div", { class: "line" }, heading, tag, state, actions), reason, bar, facts);
  const can = buttons(app, actions, current);

  function update(model) {
    const { job } = model;
    setText(name, oneLine(job.name, 400));
    setJobBadge(state, job);
    setText(reason, visible(job.stateReason ?? "") + waitingText(job, now()));
    const [step, total] = [Number(job.step ?? 0), Number(job.totalSteps ?? 0)];
    setAttribute(bar, "aria-label", "Steps done");
    setAttribute(bar, "value", total > 0 ? Math.min(1, step / total).toFixed(4) : 0);
    set.steps(total > 0 ? `${count(step)} of ${count(total)} (${Math.floor((100 * step) / total)} %)` : "");
    const seconds = secondsLeft(model.samples, job);
    set.left(Number.isFinite(seconds) ? duration(seconds) : "");
    const speed = hasEnded(job.state) || job.state === "JOB_STATE_RUNNING" ? stepsPerSecond(model.samples, job) : NaN;
    set.pace(Number.isFinite(speed) ? pace(speed) : "");
    set.loss(job.loss === undefined ? "" : number(Number(job.loss)));
    const took = (job.endTime ? millis(job.endTime) / 1000 : now()) - millis(job.startTime) / 1000;
    set.took(Number.isFinite(took) ? duration(took) : "");
    set.owner(oneLine(job.queue?.owner, 128, ""));
    show(tag, job.verification !== undefined);
    set.kind(jobKind({ ...job, verification: undefined }));
    set.precision(job.precision === "no" ? "fp32" : visible(job.precision ?? ""));
    set.created(`${dateAndTime(job.createTime)} (${age(now() - millis(job.createTime) / 1000)} ago)`);
    set.of(verification(job));
    set.sweep(sweepPlace(job));
    set.validation(job.validation ? `${number(Number(job.validation.loss ?? 0))} after step ${count(job.validation.step)}` : "");
    set.id(job.jobId);
    const texts = labelsOf(job);
    set.labels(texts.length > 0 ? labels(texts) : "");
    can(job);
  }
  return { node, heading, update };
}

function sweepPlace(job) {
  const place = job.sweep;
  if (!place) return "";
  const settings = Object.entries(place.settings ?? {}).map(([option, value]) => `${option}=${value}`).join(" ");
  const link = element("a", { href: format({ view: "sweep", id: place.sweepId }) }, `job ${count(place.point)} of ${count(place.points)}`);
  return [link, isolated(` ${oneLine(settings, 400, "")}`)];
}

function verification(job) {
  const of = job.verification;
  if (!of) return "";
  const first = `steps ${count(of.firstStep)} to ${count(of.lastStep)} of `;
  const rest = of.difference ? `: step ${count(of.difference.step)} differs` : `: the same up to step ${count(of.compared)}`;
  return [first, jobLink(of.jobId, shortId(of.jobId)), rest];
}

function buttons(app, box, current) {
  const about = () => element("span", {}, isolated(oneLine(current().job.name, 120)), ` · ${shortId(current().id)}`);
  const button = (label, method, danger, ask) => {
    const node = element("button", { type: "button", hidden: true, onclick: ask }, label);
    if (app.may(method)) box.append(node);
    return node;
  };
  const act = (verb) => async () => { await call(`JobService/${verb}`, { jobId: current().id }); };
  const pause = button("Pause", "JobService/PauseJob", false, () => question({
    title: "Pause this job?", text: [about(), "It ends its step, keeps the state after it, and lets its workers go."], yes: "Pause the job",
    act: act("PauseJob"),
  }));
  const resume = button("Resume", "JobService/ResumeJob", false, () => question({
    title: "Resume this job?", text: [about(), "It waits for workers, and goes on from where it was."], yes: "Resume the job", act: act("ResumeJob"),
  }));
  const order = button("Order", "JobService/OrderJob", false, () => question({
    title: "Order something of this job?", text: [about(), "It is carried out between two steps, on all ranks at the same one."], yes: "Order it",
    fields: [
      { label: "Keep the state and what is learned", name: "what", type: "radio", value: "snapshot", checked: "" },
      { label: "Pictures of the prompt below, or a text that begins with it", name: "what", type: "radio", value: "prompt" },
      { label: "Go on with the learning rate below", name: "what", type: "radio", value: "learningRate" },
      { label: "Make the step the last one", name: "what", type: "radio", value: "stop" },
      { label: "Prompt or learning rate", name: "given", maxlength: 1000, autocomplete: "off" },
      { label: "After step (empty: as soon as it may be)", name: "after", type: "number", min: 1 },
    ],
    act: ({ what, given, after }) => {
      const value = { snapshot: true, stop: true, prompt: given, learningRate: Number(given) }[what];
      if (what === "learningRate" && !(value > 0)) throw new Error("Learning rate: allowed: a number above 0, as in 5e-4");
      const step = after ? { afterStep: after } : {};
      return call("JobService/OrderJob", { jobId: current().id, order: { [what]: value, ...step } });
    },
  }));
  const cancel = button("Cancel", "JobService/CancelJob", true, () => question({
    title: "Cancel this job?", text: [about(), "Its artifacts so far are kept."], yes: "Cancel the job", danger: true,
    fields: [{ label: "Why (optional)", name: "reason", maxlength: 200, autocomplete: "off" }],
    act: ({ reason }) => call("JobService/CancelJob", { jobId: current().id, ...(reason ? { reason } : {}) }),
  }));
  const verify = button("Verify", "JobService/VerifyJob", false, () => question({
    title: "Compute steps again?", text: [about(), "A worker computes them once more and compares the state after each. That is a job of its own."],
    yes: "Verify", fields: [
      { label: "First step (empty: the first)", name: "first", type: "number", min: 1 },
      { label: "Last step (empty: the newest)", name: "last", type: "number", min: 1 },
    ],
    act: async ({ first, last }) => {
      const steps = { ...(first ? { firstStep: first } : {}), ...(last ? { lastStep: last } : {}) };
      const { job } = await call("JobService/VerifyJob", { jobId: current().id, requestId: requestId(), ...steps });
      location.hash = `#/jobs/${encodeURIComponent(job.jobId)}`;
    },
  }));
  const again = button("Run again", "JobService/CreateJob", false, () => runAgain(app, current().job));
  const compare = element("a", { class: "button", hidden: true }, "Compare");
  box.append(compare);
  const remove = button("Delete", "JobService/DeleteJob", true, () => question({
    title: "Delete this job?", text: [about(), "Its history and its artifacts are deleted with it."], yes: "Delete the job", danger: true,
    act: async () => {
      await call("JobService/DeleteJob", { jobId: current().id });
      app.deleteJobs([current().id]);
      location.hash = "#/jobs";
    },
  }));
  return (job) => {
    const pauses = job.state === "JOB_STATE_PAUSED" || job.reasonCode === "JOB_REASON_PAUSING";
    const atRung = job.reasonCode === "JOB_REASON_WAITING_FOR_SWEEP";
    show(pause, !hasEnded(job.state) && !pauses && !atRung);
    show(resume, pauses && !atRung);
    show(order, !hasEnded(job.state) && Number(job.totalSteps ?? 0) > 0 && !job.verification);
    show(cancel, !hasEnded(job.state));
    show(remove, hasEnded(job.state));
    show(again, Boolean(job.jobFile) && !job.verification);
    show(compare, job.loss !== undefined);
    setAttribute(compare, "href", format({ view: "compare", ids: [job.jobId] }));
    show(verify, Number(job.step ?? 0) > 0 && !job.verification);
  };
}
