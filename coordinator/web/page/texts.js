// Which files of a job are texts that it made, and what one says. All of it is pure.
import { count } from "./format.js";

const TEXT = /^text-(\d+)\.json$/u;
/** Of an order, after a step. */
const ORDERED = /^sample-(\d+)-(\d+)\.json$/u;
/** Characters of a text that are shown; its file has all. */
const LONGEST = 20_000;

/** The texts of a job by their numbers, or by those of the orders for them, the first first. */
export function textsOf(artifacts) {
  const found = [];
  for (const { name, sha256 } of artifacts) {
    const [, number, step] = TEXT.exec(name) ?? ORDERED.exec(name) ?? [];
    if (!number || !/^[0-9a-f]{64}$/u.test(sha256 ?? "")) continue;
    const title = step ? `Order ${count(number)}, step ${count(step)}` : `Text ${count(number)}`;
    found.push({ number: Number(number), title, name, hash: sha256 });
  }
  return found.sort((one, other) => one.number - other.number);
}

/** What a text's file says; null where it has another form. */
export function madeText(file) {
  if (typeof file?.prompt !== "string" || typeof file.text !== "string") return null;
  const tokens = Array.isArray(file.tokens) ? file.tokens.length : 0;
  return { prompt: file.prompt.slice(0, LONGEST), text: file.text.slice(0, LONGEST), tokens, ended: file.ended === "end_of_text" };
}
