// Questions to the service: with the tab's token where one is needed, and a live stream that comes back by itself.

const KEPT = "admitone-token";
let askForToken = () => Promise.reject(new Error("no token"));

export function onTokenNeeded(ask) {
  askForToken = ask;
}

export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title || "The service did not answer.");
    this.status = document.status || 0;
    this.code = document.code || "UNREACHABLE";
    this.remedy = document.remedy || null;
    this.document = document;
  }
}

export const keepToken = (token) => sessionStorage.setItem(KEPT, token);

function headers(more) {
  const token = sessionStorage.getItem(KEPT);
  return { ...more, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

async function request(path, init = {}) {
  let response;
  try {
    response = await fetch(path, { ...init, headers: headers(init.headers || {}) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ detail: "The service does not answer.", remedy: "is admitone serve running?" });
  }
  if (response.status === 401) {
    sessionStorage.removeItem(KEPT);
    await askForToken();
    return request(path, init);
  }
  if (!response.ok) throw new Problem(await response.json().catch(() => ({ status: response.status })));
  return response;
}

export async function get(path, question = {}) {
  return JSON.parse(await getText(path, question));
}

/** An answer as it came: numbers beyond 2^53 would not survive being read and written again. */
export async function getText(path, question = {}) {
  const asked = Object.entries(question).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = asked.length ? `?${new URLSearchParams(asked)}` : "";
  return (await request(path + text)).text();
}

export async function post(path, body) {
  const init = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return (await request(path, init)).json();
}

/** Follow /v1/live; `told` gets each event, `state` hears whether the stream is there. Returns what ends it. */
export function follow(question, told, state) {
  const ending = new AbortController();
  run(question, told, state, ending.signal);
  return () => ending.abort();
}

async function run(question, told, state, signal) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const asked = Object.entries(question).filter(([, value]) => value);
      const response = await request(`/v1/live?${new URLSearchParams(asked)}`, { signal });
      state("live");
      pause = 500;
      await read(response.body.getReader(), told);
    } catch (error) {
      if (signal.aborted) return;
      state("down", error);
    }
    if (signal.aborted) return;
    await new Promise((wake) => setTimeout(wake, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

async function read(reader, told) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const event = lines.find((line) => line.startsWith("event: "));
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
      if (event && data.length) told(event.slice(7), JSON.parse(data.join("\n")));
    }
  }
}
