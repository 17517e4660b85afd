// What is being looked at, kept in the part of the address that is never sent to the server.

const DEFAULTS = { dimension: "", window: "1h", where: "", item: "", run: "", held: "", reason: "" };
const listeners = [];

export const state = { ...DEFAULTS };

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(DEFAULTS)) state[name] = given.get(name) ?? DEFAULTS[name];
}

export function change(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  if (!changed.length) return;
  Object.assign(state, changes);
  const kept = Object.entries(state).filter(([name, value]) => value && value !== DEFAULTS[name]);
  history.replaceState(null, "", kept.length ? `#${new URLSearchParams(kept)}` : location.pathname);
  for (const listener of listeners) listener(changed);
}

export function onChange(listener) {
  listeners.push(listener);
}

addEventListener("hashchange", () => {
  const before = { ...state };
  readAddress();
  const changed = Object.keys(DEFAULTS).filter((name) => before[name] !== state[name]);
  if (changed.length) for (const listener of listeners) listener(changed);
});
