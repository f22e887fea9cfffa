// Who looks, and the box to log in.
import { login, logout } from "./api.js";
import { element, isolated, setText, show } from "./dom.js";
import { oneLine } from "./format.js";

/** Asks for a token. */
export function loginView(app) {
  const problem = element("p", { class: "problem", role: "alert", id: "login-problem" });
  const token = element("input", {
    type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": "login-problem", placeholder: "rta1.…",
  });
  const button = element("button", { type: "submit", class: "main" }, "Log in");
  const heading = element("h1", { tabindex: "-1" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    setText(problem, "");
    try {
      await login(token.value.trim());
      token.value = "";
      await app.enter();
    } catch (error) {
      setText(problem, error.message);
      token.focus();
    }
    button.disabled = false;
  };
  const node = element("div", { class: "card login" }, heading,
    element("form", { onsubmit: submit }, element("label", {}, "Access token", token), problem,
      element("div", { class: "actions" }, button)),
    element("div", {},
      element("p", { class: "quiet" }, "An admin makes one for you, as with"),
      element("pre", {}, "ringtune token create --role submitter --name ada --access"),
      element("p", { class: "quiet" }, "A submitter sees and stops their own jobs, an observer reads everything, an admin may "
        + "do everything. A browser that has a certificate of the cluster needs no token.")));
  return { node, heading, title: "Log in", focus: token, update() {}, leave() {} };
}

/** Says in the page's head who looks. */
export function showWho(session, app) {
  const node = document.getElementById("who");
  const named = session.login === "token" || session.login === "certificate";
  show(node, named);
  const role = session.role ? ` (${session.role})` : "";
  node.replaceChildren(...(named ? [element("span", { class: "clipped" }, isolated(oneLine(session.name, 60, "somebody")), role)] : []));
  if (session.login !== "token") return;
  const leave = async () => {
    try {
      await logout();
      await app.enter();
    } catch (error) {
      app.announce(error.message);
    }
  };
  node.append(element("button", { type: "button", id: "logout", onclick: leave }, "Log out"));
}
