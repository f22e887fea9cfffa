// Which files of a job are pictures, and where its training pictures are. All of it is pure.

const PREVIEW = /^preview-(\d+|best)-(\d+)\.png$/u;
const CONTENT = /^artifact:\/\/sha256\/([0-9a-f]{64})$/u;
const PICTURE = /\.(png|jpe?g|webp)$/iu;

/** The previews of a job by step, the oldest first and the best at the end; within a step by their number. */
export function previewsOf(artifacts) {
  const steps = new Map();
  for (const { name } of artifacts) {
    const found = PREVIEW.exec(name);
    if (!found) continue;
    const key = found[1] === "best" ? Infinity : Number(found[1]);
    if (!steps.has(key)) steps.set(key, []);
    steps.get(key).push({ number: Number(found[2]), name });
  }
  return [...steps].sort(([one], [other]) => one - other).map(([key, pictures]) => ({
    step: key === Infinity ? null : key,
    pictures: pictures.sort((one, other) => one.number - other.number),
  }));
}

/** Other pictures that a job has left, by name. */
export function otherPictures(artifacts) {
  const names = [...artifacts].map(({ name }) => name).filter((name) => PICTURE.test(name) && !PREVIEW.test(name));
  return names.sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
}

/** Where a job's training pictures are: contents that hold a manifest, or folders that only the workers can read. */
export function sourcesOf(spec) {
  const sources = [];
  const add = (label, data) => {
    const folders = data?.folders?.length ? data.folders : [data];
    for (const folder of folders) {
      if (!folder?.images) continue;
      const hash = CONTENT.exec(folder.images)?.[1] ?? null;
      sources.push({ label, hash, place: folder.images });
    }
  };
  if (spec?.concepts?.length) for (const concept of spec.concepts) add(concept.placeholderToken ?? "", concept);
  else add(spec?.train?.placeholderToken ?? "", spec?.data);
  return sources;
}

const captionsOf = (file) =>
  [file.caption, ...(Array.isArray(file.captions) ? file.captions : [])].filter((text) => typeof text === "string");

/** The files of a manifest; none where it has another form. Its names and hashes are not trusted. */
export function filesOf(manifest) {
  const files = Array.isArray(manifest?.files) ? manifest.files : [];
  return files.filter((file) => typeof file?.name === "string" && /^[0-9a-f]{64}$/u.test(file?.sha256))
    .map((file) => ({ name: file.name, hash: file.sha256, caption: captionsOf(file).join(" | ") }));
}
