// Several runs beside each other: what they are called, in which options they differ, and at which steps they have values. All of it is pure.
import { oneLine, shortId } from "./format.js";

/** What each of some jobs is called: by its name, and where another one has the same, by the end of its id as well. */
export function runNames(jobs) {
  const names = jobs.map((job) => oneLine(job.name, 40));
  return names.map((name, place) => (names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} ${shortId(jobs[place].jobId)}`));
}

/** The options in which some jobs differ, by their keys in job files: { key, values }, a value of null where one has no such option. */
export function differences(jobs) {
  const all = jobs.map((job) => optionsOf(job.spec ?? {}));
  const keys = new Set(all.flatMap((fields) => [...fields.keys()]));
  keys.delete("name");
  return [...keys].map((key) => ({ key, values: all.map((fields) => fields.get(key) ?? null) })).filter(({ values }) => new Set(values).size > 1);
}

// Options by keys such as train.learning_rate and concepts[1].images, of a part of a spec, which names them as job files do, but for camel case.
function optionsOf(part, key = "", found = new Map()) {
  if (typeof part !== "object") return found.set(key, String(part));
  for (const [name, inner] of Object.entries(part)) {
    const word = name.replace(/[A-Z]/gu, (letter) => `_${letter.toLowerCase()}`);
    optionsOf(inner, Array.isArray(part) ? `${key}[${Number(name) + 1}]` : key === "" ? word : `${key}.${word}`, found);
  }
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
