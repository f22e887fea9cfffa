// Numbers, times and texts as people read them. Nothing here touches the page.

const THIN_SPACE = "\u202f";

/** What others chose may have no end: longer texts are cut here. */
export const LONGEST_NAME = 200;

// Controls, and characters that turn the direction of what follows: shown by their number. Joiners stay, which emoji need.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu;

/** A text of others, with what cannot be seen made visible. */
export function visible(text) {
  const shown = (found) => `‹U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
  return String(text ?? "").replace(INVISIBLE, shown);
}

/** The same on one line, cut to `longest` characters; `empty` where there is nothing to see. */
export function oneLine(text, longest = LONGEST_NAME, empty = "(no name)") {
  const line = visible(String(text ?? "").slice(0, 4 * longest)).replace(/\s+/gu, " ").trim();
  if (line === "") return empty;
  const characters = Array.from(line);
  return characters.length > longest ? `${characters.slice(0, longest - 1).join("")}…` : line;
}

/** 4 significant digits: 0.1234, 1.235e-5. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(3);
  return text.replace("-", "−").replace("e-", "e−").replace("e+", "e");
}

/** 12 345. */
export function count(value) {
  const whole = Math.trunc(Number(value ?? 0));
  const digits = String(Math.abs(whole)).replace(/\B(?=(\d{3})+$)/gu, THIN_SPACE);
  return whole < 0 ? `−${digits}` : digits;
}

/** 3 s, 2 min 05 s, 3 h 07 min, 2 d 4 h. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A short time in its own unit: 3.2 ms, 1.25 s. */
export function briefly(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  return seconds < 60 ? `${Number(seconds.toPrecision(3))} s` : duration(seconds);
}

/** One word of a duration, for narrow columns: 3 min. */
export function age(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 2 * 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** 1.5 MiB. */
export function bytes(value) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let rest = Number(value ?? 0);
  let unit = 0;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${rest} bytes` : `${Number(rest.toPrecision(3))} ${units[unit]}`;
}

/** 498 MB: of what travels, as networks are measured. */
export function megabytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let rest = Number(value ?? 0);
  let unit = 0;
  while (rest >= 999.5 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${Number(rest.toPrecision(3))} ${units[unit]}`;
}

/** 2.5 steps/s; below one a second the time of a step says more. */
export function pace(stepsPerSecond) {
  if (!Number.isFinite(stepsPerSecond) || stepsPerSecond <= 0) return "–";
  if (stepsPerSecond >= 1) return `${Number(stepsPerSecond.toPrecision(3))} steps/s`;
  return `${briefly(1 / stepsPerSecond)}/step`;
}

/** Milliseconds of a timestamp of the API; NaN without one. */
export function millis(timestamp) {
  return timestamp ? Date.parse(timestamp) : NaN;
}

const two = (value) => String(value).padStart(2, "0");

/** The zone of the reader's own time at a date, in which all times of the page are: UTC, UTC+1, UTC−3:30. */
export function zone(date) {
  const ahead = -date.getTimezoneOffset();
  if (ahead === 0) return "UTC";
  const [hours, minutes] = [Math.floor(Math.abs(ahead) / 60), Math.abs(ahead) % 60];
  return `UTC${ahead > 0 ? "+" : "−"}${hours}${minutes > 0 ? `:${two(minutes)}` : ""}`;
}

/** A timestamp of the API in the reader's own time: { day: "2026-11-23", time: "14:03:59", zone: "UTC+1" }; null without one. */
export function local(timestamp) {
  const date = new Date(millis(timestamp));
  if (Number.isNaN(date.getTime())) return null;
  return {
    day: `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`,
    time: `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`, zone: zone(date),
  };
}

/** 2026-11-23 14:03:59 UTC+1, in the reader's own time. */
export function dateAndTime(timestamp) {
  const found = local(timestamp);
  return found === null ? "–" : `${found.day} ${found.time} ${found.zone}`;
}

/** The end of an id, by which people tell jobs from each other: it begins with the time. */
export function shortId(id) {
  const text = String(id ?? "");
  return text.length > 8 ? `…${text.slice(-8)}` : text;
}
