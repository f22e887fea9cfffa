// Addresses within the page: what comes behind the # and back.

/** Keys of the list of jobs that an address keeps, with their defaults. */
export const LIST_DEFAULTS = { q: "", state: "", kind: "", owner: "", sort: "-age", page: 1 };

/** Jobs that are laid over each other at most. */
export const MOST_COMPARED = 8;

/** The route of a location's hash. */
export function parse(hash) {
  const [path, query = ""] = String(hash ?? "").replace(/^#/u, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  if (parts.length === 0 || (parts.length === 1 && parts[0] === "jobs")) return { view: "jobs", list: parseList(query) };
  if (parts.length === 2 && parts[0] === "jobs") return { view: "job", id: decode(parts[1]) };
  if (parts.length === 2 && parts[0] === "sweeps") return { view: "sweep", id: decode(parts[1]) };
  if (parts.length === 1 && parts[0] === "queue") return { view: "queue" };
  if (parts.length === 1 && parts[0] === "workers") return { view: "workers" };
  if (parts.length === 1 && parts[0] === "compare") return { view: "compare", ids: parseIds(query) };
  return { view: "unknown" };
}

/** The hash of a route. */
export function format(route) {
  if (route.view === "job") return `#/jobs/${encodeURIComponent(route.id)}`;
  if (route.view === "sweep") return `#/sweeps/${encodeURIComponent(route.id)}`;
  if (route.view === "queue") return "#/queue";
  if (route.view === "workers") return "#/workers";
  if (route.view === "compare") return `#/compare?jobs=${route.ids.map(encodeURIComponent).join(",")}`;
  const query = new URLSearchParams();
  for (const [key, usual] of Object.entries(LIST_DEFAULTS)) {
    const value = route.list?.[key] ?? usual;
    if (value !== usual) query.set(key, String(value));
  }
  const text = query.toString();
  return text === "" ? "#/jobs" : `#/jobs?${text}`;
}

function parseList(query) {
  const given = new URLSearchParams(query);
  const list = { ...LIST_DEFAULTS };
  for (const key of ["q", "state", "kind", "owner", "sort"]) {
    if (given.has(key)) list[key] = given.get(key).slice(0, 500);
  }
  const page = Number.parseInt(given.get("page") ?? "1", 10);
  list.page = Number.isSafeInteger(page) && page > 0 ? page : 1;
  return list;
}

function parseIds(query) {
  const given = /(?:^|&)jobs=([^&]*)/u.exec(query)?.[1] ?? "";
  return [...new Set(given.split(",").filter((part) => part !== "").map(decode))].slice(0, MOST_COMPARED);
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
