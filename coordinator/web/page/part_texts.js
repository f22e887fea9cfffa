// Texts that a job made, as they come.
import { content } from "./api.js";
import { element, isolated, keep, setText, show } from "./dom.js";
import { count, visible } from "./format.js";
import { section } from "./parts.js";
import { madeText, textsOf } from "./texts.js";

/** Texts that are shown, the newest; all are among the artifacts. */
const MOST = 50;

/** The part; `update(model)` shows what there is. */
export function textsPart(app) {
  const said = element("p", { class: "quiet" });
  const rows = element("div", { class: "texts tall", tabindex: "0", role: "group", "aria-label": "Texts" });
  const node = section("Texts", { hidden: true }, said, rows);
  function update(model) {
    const texts = textsOf(model.artifacts.values());
    show(node, texts.length > 0);
    const newest = texts.slice(-MOST);
    setText(said, newest.length < texts.length ? `The newest ${count(newest.length)} of ${count(texts.length)}` : `${count(texts.length)} ${texts.length === 1 ? "text" : "texts"}`);
    const atEnd = rows.scrollTop + rows.clientHeight >= rows.scrollHeight - 30;
    keep(rows, newest, (text) => `${text.name} ${text.hash}`, (text) => makeText(app, text, () => {
      if (atEnd) rows.scrollTop = rows.scrollHeight;
    }));
  }
  return { node, update };
}

function makeText(app, { title, hash }, shown) {
  const about = element("span", { class: "quiet" });
  const words = element("pre", { class: "made" });
  read(app, hash, about, words).then(shown);
  return element("article", {}, element("h3", {}, `${title} `, about), words);
}

async function read(app, hash, about, words) {
  try {
    const made = madeText(await content(hash));
    if (!made) {
      setText(about, "is no text of this form");
      return;
    }
    setText(about, `${count(made.tokens)} ${made.tokens === 1 ? "token" : "tokens"}${made.ended ? ", ended by the model" : ""}`);
    words.replaceChildren(element("b", {}, isolated(visible(made.prompt))), isolated(visible(made.text)));
  } catch (error) {
    if (!app.isRefused(error)) setText(about, `cannot be read: ${error.message}`);
  }
}
