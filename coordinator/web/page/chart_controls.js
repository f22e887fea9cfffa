// How charts are shown: smoothed, on which axis, and which part of the steps.
import { element, setText, show } from "./dom.js";
import { count } from "./format.js";
import { reach } from "./smoothing.js";

/** Controls of several charts; `changed()` is called when one of them is another. */
export function chartControls(changed) {
  const state = { smoothing: 0.45, log: false, clip: true, part: null };
  const set = (changes) => {
    Object.assign(state, changes);
    changed();
  };
  const over = element("output", { class: "quiet", for: "smoothing" });
  const slider = element("input", {
    type: "range", id: "smoothing", min: 0, max: 100, step: 1, value: state.smoothing * 100,
    oninput: (event) => set({ smoothing: Number(event.target.value) / 100 }),
  });
  const box = (label, key) => {
    const input = element("input", { type: "checkbox", name: key, onchange: (event) => set({ [key]: event.target.checked }) });
    input.checked = state[key];
    return element("label", { class: "check" }, input, label);
  };
  const part = element("span", { role: "status" });
  const whole = element("button", { type: "button", class: "plain", onclick: () => set({ part: null }) }, "All steps");
  const chosen = element("span", { class: "part-of", hidden: true }, part, whole);
  const node = element("div", { class: "chart-controls" },
    element("span", { class: "slider" }, element("label", { for: "smoothing" }, "Smoothing"), slider, over),
    box("Log scale", "log"), box("Clip outliers", "clip"), chosen);
  return {
    node, state,
    zoom: (chosenPart) => set({ part: chosenPart }),
    /** Shows what is chosen for so many steps; the steps that a smoothing looks back over. */
    update(span) {
      const wanted = reach(state.smoothing, span);
      // Over one step alone there is nothing to smooth.
      const steps = wanted >= 1.5 ? wanted : 0;
      setText(over, steps > 0 ? `over about ${count(Math.round(steps))} steps` : "none");
      slider.setAttribute("aria-valuetext", over.textContent);
      show(chosen, state.part !== null);
      setText(part, state.part ? `Steps ${count(state.part.from)} to ${count(state.part.to)}` : "");
      return steps;
    },
  };
}
