// What tells workers apart for people. All of it is pure.
import { oneLine, shortId, visible } from "./format.js";

/**
 * What is said of each worker besides its host name, by its id: nothing, unless several have that name. Then where it is: its host, or
 * its host and port; else the end of its id. Workers have a workerId, a hostName and an address.
 */
export function distinctions(workers) {
  const names = new Map();
  for (const worker of workers) {
    const name = worker.hostName ?? "";
    if (!names.has(name)) names.set(name, new Map());
    names.get(name).set(worker.workerId, worker);
  }
  const found = new Map();
  for (const same of names.values()) {
    const each = [...same.values()];
    const say = each.length < 2 ? () => "" : firstThatDiffers(each);
    for (const worker of each) found.set(worker.workerId, say(worker));
  }
  return found;
}

function firstThatDiffers(workers) {
  const places = [(worker) => hostOf(worker.address), (worker) => visible(worker.address ?? "")];
  const differs = (say) => new Set(workers.map(say)).size === workers.length && workers.every((worker) => say(worker) !== "");
  return places.find(differs) ?? ((worker) => shortId(worker.workerId));
}

/** The host of host:port. */
function hostOf(address) {
  return visible(String(address ?? "").replace(/:\d+$/u, ""));
}

/** A worker in a few words: its host name, and what distinguishes it. */
export function called(worker, distinction = "", longest = 40) {
  const name = oneLine(worker.hostName, longest, "(no host name)");
  return distinction === "" ? name : `${name} ${distinction}`;
}
