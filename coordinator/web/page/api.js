// Calls to the coordinator: its API as JSON, who one is, files.

/**
 * A call that was refused or did not come through. `code` as in the API: not_found, unauthenticated, unavailable …
 * `wait`: the seconds after which the coordinator wants to be asked again; 0 where it says nothing of that.
 */
export class CallError extends Error {
  constructor(code, message, wait = 0) {
    super(message);
    this.code = code;
    this.wait = wait;
  }

  /** Whether the same call may succeed a little later. */
  get passes() {
    return this.code === "unavailable" || this.code === "resource_exhausted" || this.code === "deadline_exceeded";
  }
}

/** No answer of the coordinator takes longer; on a slow line a large list may. */
const LONGEST_CALL = 30_000;

let ahead = 0;

/** The coordinator's time in seconds, by its last answer: clocks differ. */
export function now() {
  return Date.now() / 1000 + ahead;
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(LONGEST_CALL), ...options,
    });
  } catch (error) {
    throw new CallError("unavailable", `the coordinator does not answer: ${error.message}`);
  }
  const date = Date.parse(answer.headers.get("date") ?? "");
  // The header has whole seconds: a small difference says nothing.
  if (Number.isFinite(date)) ahead = Math.abs(date - Date.now()) < 2000 ? 0 : (date - Date.now()) / 1000;
  if (answer.ok) return answer;
  const said = await answer.text().catch(() => "");
  throw refusal(answer, said);
}

function refusal({ status, headers }, said) {
  let known = null;
  try {
    known = JSON.parse(said);
  } catch {
    // Not an answer of the API: a proxy's, or a plain text.
  }
  const usual = { 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 429: "resource_exhausted" };
  const code = known?.code ?? usual[status] ?? (status >= 500 ? "unavailable" : "unknown");
  const text = known?.message ?? (said.slice(0, 500).trim() || `the coordinator answers ${status}`);
  return new CallError(code, text, Math.max(0, Number(headers.get("retry-after") ?? 0) || 0));
}

function post(path, body) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) });
}

/** A method of the API, as in call("JobService/GetJob", { jobId }). */
export async function call(method, request = {}) {
  const answer = await post(`/api/ringtune.v1.${method}`, request);
  return answer.json();
}

/** A job with its file. */
export async function readJob(jobId) {
  const { job, jobFile } = await call("JobService/GetJob", { jobId, withJobFile: true });
  return { ...job, jobFile };
}

/** All entries of a list, page by page, at most `most` of them. */
export async function list(method, field, request, most = 10_000) {
  const found = [];
  let pageToken = "";
  do {
    const page = await call(method, { ...request, ...(pageToken ? { pageToken } : {}) });
    found.push(...(page[field] ?? []));
    pageToken = page.nextPageToken ?? "";
  } while (pageToken !== "" && found.length < most);
  return { found, more: pageToken !== "" };
}

/** Who looks, and what they may do. */
export async function session() {
  return (await ask("/api/session")).json();
}

export async function login(token) {
  await post("/login", { token });
}

export async function logout() {
  await post("/logout", {});
}

/** A content by its hash, as JSON. */
export async function content(hash) {
  return (await ask(contentAddress(hash))).json();
}

/** Where a job's file is read. */
export function fileAddress(jobId, name) {
  return `/api/files/${encodeURIComponent(jobId)}/${encodeURIComponent(name)}`;
}

/** Where all files of a job are read, as one archive. */
export function archiveAddress(jobId) {
  return `/api/files/${encodeURIComponent(jobId)}`;
}

/** Where a content is read. */
export function contentAddress(hash) {
  return `/api/contents/${encodeURIComponent(hash)}`;
}

/** Something to find a request by, so that asking again does not do it twice. */
export function requestId() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return `page-${Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
