// Making and changing what is on the page: elements and text nodes, never markup, so that no text of others can be any.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Functions are listeners (onclick), true sets an attribute without value, null and false leave it out. */
export function element(name, attributes = {}, ...children) {
  return dress(document.createElement(name), attributes, children);
}

/** The same of SVG. */
export function drawn(name, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, name), attributes, children);
}

function dress(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Writes a text, but only if it is another one: what did not change is not read out again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute, or takes it away. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** Shows or hides. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Makes the children of a node those of `items`, in their order: one for each key, made once and updated from then on, so
 * that focus and scrolling stay.
 */
export function keep(parent, items, key, make, update = () => {}) {
  const known = parent.kept ?? (parent.kept = new Map());
  const wanted = new Set(items.map(key));
  for (const [name, node] of known) {
    if (wanted.has(name)) continue;
    node.remove();
    known.delete(name);
  }
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    if (!node) {
      node = make(item);
      known.set(name, node);
    }
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
}

/** A name of others in a box of its own: its direction of writing ends with it. */
export function isolated(text, attributes = {}) {
  return element("bdi", attributes, text);
}

/** Runs `work` before the next picture, however often it is asked for, and at most every `pause` milliseconds. */
export function batched(work, pause = 250) {
  let asked = false;
  let last = -Infinity;
  const run = () => requestAnimationFrame((time) => {
    asked = false;
    last = time;
    work();
  });
  return () => {
    if (asked) return;
    asked = true;
    const rest = last + pause - performance.now();
    if (rest > 0) setTimeout(run, rest);
    else run();
  };
}
