// Dialogs: questions before something is changed, and a picture in its full size. The browser keeps the focus within.
import { element, isolated, setText } from "./dom.js";
import { oneLine } from "./format.js";

function opened(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  // A click beside it closes it, as Escape does.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.showModal();
  return dialog;
}

/**
 * Asks before something is done. `fields` are inputs with a name, shown with their labels, or texts of several `rows`; `act` gets
 * their values, and the dialog stays, with what went wrong, if it throws.
 */
export function question({ title, text, yes, no = "Back", danger = false, wide = false, fields = [], act }) {
  const problem = element("p", { class: "problem", role: "alert" });
  const button = element("button", { type: "submit", class: danger ? "danger" : "main" }, yes);
  const back = element("button", { type: "button", onclick: () => dialog.close() }, no);
  const inputs = fields.map(({ label, ...attributes }) => element("label", {}, label, input(attributes)));
  const form = element("form", { method: "dialog" }, element("h2", { id: "question" }, title),
    ...text.map((line) => element("p", {}, line)), ...inputs, problem, element("div", { class: "actions" }, back, button));
  const dialog = element("dialog", { "aria-labelledby": "question", class: wide ? "wide" : null }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    setText(problem, "");
    try {
      await act(Object.fromEntries(new FormData(form)));
      dialog.close();
    } catch (error) {
      setText(problem, error.message);
    }
    button.disabled = false;
  });
  return opened(dialog);
}

function input({ rows, value, ...attributes }) {
  const node = rows === undefined ? element("input", attributes) : element("textarea", { rows, class: "file", ...attributes });
  if (value !== undefined) {
    node.value = value;
    // A text is read from its beginning.
    if (node.type !== "radio") node.setSelectionRange(0, 0);
  }
  return node;
}

/** Shows one of several pictures; arrows go to the others. Each has `address`, `name` and `text`. */
export function pictures(all, first) {
  let place = first;
  const image = element("img", {});
  const text = element("p", { role: "status" });
  const before = element("button", { type: "button" }, "Previous");
  const after = element("button", { type: "button" }, "Next");
  const save = element("a", { class: "button" }, "Download");
  const close = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = element("dialog", { class: "picture", "aria-label": "Picture" }, image, text,
    element("div", { class: "actions" }, element("div", { class: "actions" }, before, after), element("div", { class: "actions" }, save, close)));
  const go = (to) => {
    if (to < 0 || to >= all.length) return;
    place = to;
    const picture = all[place];
    image.src = picture.address;
    image.alt = picture.text;
    text.replaceChildren(isolated(picture.text), ` (${place + 1} of ${all.length})`);
    save.href = picture.address;
    save.download = oneLine(picture.name, 200, "picture.png");
    before.disabled = place === 0;
    after.disabled = place === all.length - 1;
  };
  before.addEventListener("click", () => go(place - 1));
  after.addEventListener("click", () => go(place + 1));
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") go(place - 1);
    if (event.key === "ArrowRight") go(place + 1);
  });
  go(first);
  opened(dialog);
  close.focus();
  return dialog;
}
