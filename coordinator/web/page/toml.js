// A job's spec, as the API says it, written as a job file.

/** Fields of the spec that are whole numbers: the API's JSON writes them as texts. A test compares them with job.proto. */
export const WHOLE_NUMBERS = new Set([
  "repeats", "num_vectors", "resolution", "train_batch_size", "gradient_accumulation_steps", "max_train_steps",
  "lr_warmup_steps", "seed", "save_steps", "lr_num_cycles", "num_train_epochs", "checkpointing_steps",
  "checkpoints_total_limit", "validation_loss_steps", "validation_loss_samples", "early_stop_patience",
  "num_validation_images", "validation_steps", "keep_tags", "min_bucket_reso", "max_bucket_reso", "bucket_reso_steps",
  "n_layer", "n_head", "n_embd", "block_size", "batch_size", "max_iters", "warmup_iters", "lr_decay_iters", "eval_interval",
  "eval_iters", "compare_interval", "num_samples", "max_new_tokens", "top_k", "count", "steps", "width", "height", "batch", "world_size", "min_world_size", "threads_per_rank",
]);

const SECTIONS = ["model", "data", "train", "generate", "gpt2", "generate_text", "cluster", "debug"];

/** The text of a job file. */
export function jobFile(spec, queue) {
  const lines = [];
  for (const key of ["kind", "name"]) if (spec[key]) lines.push(`${key} = ${value(key, spec[key])}`);
  for (const section of SECTIONS) table(lines, `[${section}]`, spec[camel(section)]);
  for (const concept of spec.concepts ?? []) table(lines, "[[concepts]]", concept);
  table(lines, "[queue]", queue);
  return `${lines.join("\n")}\n`;
}

/** What a job file says, by keys such as train.learning_rate and concepts[1].placeholder_token, each as it is written there. */
export function jobFields(spec) {
  const found = new Map();
  for (const key of ["kind", "name"]) if (spec[key]) found.set(key, value(key, spec[key]));
  for (const section of SECTIONS) for (const [key, given] of fieldsOf(spec[camel(section)])) found.set(`${section}.${key}`, given);
  (spec.concepts ?? []).forEach((concept, place) => {
    for (const [key, given] of fieldsOf(concept)) found.set(`concepts[${place + 1}].${key}`, given);
  });
  return found;
}

function table(lines, title, fields) {
  const written = fieldsOf(fields).map(([key, given]) => `${key} = ${given}`);
  if (written.length > 0) lines.push("", title, ...written);
}

// Keys and values as they are written; what is empty is not.
function fieldsOf(fields) {
  return Object.entries(fields ?? {}).map(([key, given]) => [snake(key), given])
    .filter(([, given]) => given !== "" && given !== null && given !== undefined).map(([key, given]) => [key, value(key, given)]);
}

function camel(key) {
  return key.replace(/_([a-z])/gu, (_, letter) => letter.toUpperCase());
}

function snake(key) {
  return key.replace(/[A-Z]/gu, (letter) => `_${letter.toLowerCase()}`);
}

function value(key, given) {
  if (Array.isArray(given)) return `[${given.map((one) => value(key, one)).join(", ")}]`;
  if (given !== null && typeof given === "object") {
    const plain = /^[A-Za-z0-9_-]+$/u;
    const name = (word) => (key === "labels" ? (plain.test(word) ? word : text(word)) : snake(word));
    return `{ ${Object.entries(given).map(([word, one]) => `${name(word)} = ${value(key === "labels" ? "" : snake(word), one)}`).join(", ")} }`;
  }
  if (typeof given !== "string") return String(given);
  return WHOLE_NUMBERS.has(key) && /^-?\d+$/u.test(given) ? given : text(given);
}

function text(given) {
  const escaped = given.replace(/[\\"]/gu, "\\$&").replace(/\n/gu, "\\n").replace(/\t/gu, "\\t");
  const controls = /[\u0000-\u001f\u007f]/gu;
  return `"${escaped.replace(controls, (found) => `\\u${found.codePointAt(0).toString(16).padStart(4, "0")}`)}"`;
}
