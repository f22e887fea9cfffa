// Several runs beside each other: what they are called, in which options they differ, and at which steps they have values. All of it is pure.
import { oneLine, shortId } from "./format.js";

/** What each of some jobs is called: by its name, and where another one has the same, by the end of its id as well. */
export function runNames(jobs) {
  const names = jobs.map((job) => oneLine(job.name, 40));
  return names.map((name, place) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} ${shortId(jobs[place].jobId)}`));
}

/** The options in which some jobs differ, as their files have them: { key, values }, a value of null where one has no such option. */
export function differences(jobs) {
  const all = jobs.map((job) => optionsOf(job.jobFile ?? ""));
  const keys = new Set(all.flatMap((fields) => [...fields.keys()]));
  keys.delete("name");
  return [...keys].map((key) => ({ key, values: all.map((fields) => fields.get(key) ?? null) })).filter(({ values }) => new Set(values).size > 1);
}

// Options by keys such as train.learning_rate and concepts[1].images, of a file as the coordinator writes it.
function optionsOf(file) {
  const found = new Map();
  const lists = new Map();
  let [table, key, quote] = ["", "", ""];
  for (const line of file.split("\n")) {
    const [, list, name] = /^\[(\[?)([\w.]+)\]+$/u.exec(line) ?? [];
    const [, word, value] = /^([\w]+) = (.*)$/u.exec(line) ?? [];
    if (quote === "" && name) {
      if (list) lists.set(name, (lists.get(name) ?? 0) + 1);
      table = list ? `${name}[${lists.get(name)}].` : `${name}.`;
    } else if (quote === "" && word) {
      key = table + word;
      found.set(key, value);
    } else if (quote !== "") found.set(key, `${found.get(key)}\n${line}`);
    // Texts of several lines.
    for (const [mark] of line.matchAll(/"""|'''/gu)) quote = quote === "" ? mark : quote === mark ? "" : quote;
  }
  for (const option of found.keys()) if (option.startsWith("queue.")) found.delete(option);
  return found;
}

/** The steps of several histories as one: each once, in order. */
export function unionOfSteps(histories) {
  const steps = new Set(histories.flatMap((points) => points.map((point) => point.step)));
  return [...steps].sort((one, other) => one - other).map((step) => ({ step }));
}

/** The lowest validation loss of a history and its step; null without any. */
export function lowestValidation(points) {
  let found = null;
  for (const { step, validationLoss } of points) if (validationLoss !== null && (found === null || validationLoss < found.validationLoss)) found = { step, validationLoss };
  return found;
}
