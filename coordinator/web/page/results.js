// Which of a job's files are what it was made for, and which came on the way. All of it is pure.

/** Groups by the names of their files, in the order in which they are shown; what is in none of them is the result. */
const ON_THE_WAY = [
  { key: "previews", title: "Previews", name: /^preview-.*\.png$/u },
  { key: "checkpoints", title: "Checkpoints", name: /^checkpoint-\d+\.safetensors$/u, newestFirst: true },
  { key: "earlier", title: "States on the way", name: /-steps-\d+\.\w+$/u, newestFirst: true },
  { key: "records", title: "Records", name: /^(job\.toml|job\.log|metrics\.csv|events\.out\.tfevents\..*)$/u },
];

/** A job's files in groups that are not empty, the result first: { key, title, files }. */
export function groupsOf(artifacts) {
  const result = { key: "result", title: "Result", files: [] };
  const others = ON_THE_WAY.map((group) => ({ ...group, files: [] }));
  for (const file of artifacts) (others.find((group) => group.name.test(file.name)) ?? result).files.push(file);
  result.files.sort((one, other) => weight(one.name) - weight(other.name) || byName(one, other));
  for (const group of others) group.files.sort(group.newestFirst ? (one, other) => byName(other, one) : byName);
  return [result, ...others].filter((group) => group.files.length > 0).map(({ key, title, files }) => ({ key, title, files }));
}

function byName(one, other) {
  return one.name.localeCompare(other.name, "en", { numeric: true });
}

// What there is one of comes before what is one of many, weights before what describes them.
function weight(name) {
  const isOneOfMany = /\d+\.\w+$/u.test(name);
  return (isOneOfMany ? 2 : 0) + (name.endsWith(".safetensors") ? 0 : 1);
}
