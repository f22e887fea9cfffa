// Previews by step beside the training pictures, and other pictures that a job left.
import { content, contentAddress, fileAddress } from "./api.js";
import { pictures } from "./dialogs.js";
import { element, isolated, keep, setText, show } from "./dom.js";
import { count, oneLine } from "./format.js";
import { section } from "./parts.js";
import { filesOf, otherPictures, previewsOf, sourcesOf } from "./previews.js";

/** Training pictures that are shown without being asked for. */
const SHOWN = 12;

/** The part; `update(model)` shows what there is. */
export function picturesPart(app) {
  const strip = element("div", { class: "strip", tabindex: "0", role: "group", "aria-label": "Previews by step" });
  const prompt = element("p", { class: "quiet" });
  const previews = element("div", { hidden: true }, element("h3", {}, "Previews"), prompt, strip);
  const gallery = element("div", { class: "gallery" });
  const others = element("div", { hidden: true }, element("h3", {}, "Pictures"), gallery);
  const sources = element("div", { class: "sources" });
  const training = element("div", { hidden: true }, element("h3", {}, "Training pictures"), sources);
  const node = section("Pictures", { class: "pictures", hidden: true }, previews, others, training);
  let shownSpec = null;
  // As they are now: a thumb is made once, and opens what there is by then.
  let all = [];
  let rest = [];
  const open = (list, name) => pictures(list, list.findIndex((picture) => picture.name === name));
  let followed = false;

  function update(model) {
    const text = oneLine(model.job?.spec?.train?.validationPrompt, 400, "");
    const groups = previewsOf(model.artifacts.values());
    all = groups.flatMap((group) => group.pictures.map((picture) => ({
      name: picture.name, address: fileAddress(model.id, picture.name), text: nameOf(group.step, picture.number, text),
    })));
    setText(prompt, text);
    show(previews, groups.length > 0);
    const atEnd = strip.scrollLeft + strip.clientWidth >= strip.scrollWidth - 40;
    keep(strip, groups, (group) => group.step ?? "best", (group) => element("figure", {},
      element("figcaption", {}, group.step === null ? "best" : `step ${count(group.step)}`)), (figure, group) => {
      keep(figure, group.pictures, (picture) => picture.name, (picture) => thumb(
        fileAddress(model.id, picture.name), nameOf(group.step, picture.number, text), () => open(all, picture.name)));
    });
    const names = otherPictures(model.artifacts.values());
    rest = names.map((name) => ({ name, address: fileAddress(model.id, name), text: oneLine(name) }));
    show(others, names.length > 0);
    keep(gallery, names.slice(0, 200), (name) => name, (name) => thumb(fileAddress(model.id, name), oneLine(name),
      () => open(rest, name)));
    if (model.job?.spec && shownSpec !== model.id) {
      shownSpec = model.id;
      showSources(app, sources, training, node, sourcesOf(model.job.spec));
    }
    show(node, !previews.hidden || !others.hidden || !training.hidden);
    // The newest stay in sight, unless somebody looks at earlier ones.
    if (groups.length > 0 && (atEnd || !followed)) strip.scrollLeft = strip.scrollWidth;
    followed = groups.length > 0;
  }
  return { node, update };
}

function nameOf(step, number, prompt) {
  const what = step === null ? "best embedding" : `step ${count(step)}`;
  return `Preview ${number}, ${what}${prompt === "" ? "" : `: ${prompt}`}`;
}

function thumb(address, text, open) {
  return element("button", { type: "button", class: "thumb", "aria-label": text, title: text, onclick: open },
    element("img", { src: address, alt: "", loading: "lazy", decoding: "async", width: 96, height: 96 }));
}

async function showSources(app, box, training, part, sources) {
  show(training, sources.length > 0);
  for (const source of sources) {
    const gallery = element("div", { class: "gallery" });
    const label = element("p", { class: "quiet" });
    box.append(element("div", {}, label, gallery));
    if (source.hash === null) {
      label.append("The workers read them from ", isolated(oneLine(source.place, 300), { class: "mono" }));
      continue;
    }
    try {
      const files = filesOf(await content(source.hash));
      label.append(...(source.label === "" ? [] : [isolated(oneLine(source.label, 80)), ": "]), `${count(files.length)} pictures`);
      fill(gallery, files);
    } catch (error) {
      if (!app.isRefused(error)) label.append(`Their list cannot be read: ${error.message}`);
    }
  }
  show(part, !training.hidden || !part.hidden);
}

function fill(gallery, files) {
  const all = files.map((file) => ({
    name: file.name, address: contentAddress(file.hash), text: oneLine(file.caption === "" ? file.name : `${file.name}: ${file.caption}`, 400),
  }));
  const add = (chosen) => gallery.append(...chosen.map((picture) => thumb(picture.address, picture.text, () => pictures(all, all.indexOf(picture)))));
  add(all.slice(0, SHOWN));
  if (all.length <= SHOWN) return;
  const more = element("button", {
    type: "button", class: "plain", onclick: () => {
      more.remove();
      add(all.slice(SHOWN));
    },
  }, `All ${count(all.length)} pictures`);
  gallery.append(more);
}
