// The server: the token, calls in JSON, and the stream of events. The only file that sends anything, and only home.

const KEY = "opbox.token";

/** Where the server's paths begin: the folder of this document, as a proxy may have put the server under a path. */
const HOME = new URL(".", location.href);

/** A path of the server as the browser finds it. */
export const at = (path) => new URL(`.${path}`, HOME).href;

export const PATHS = {
  events: "/v1/events",
  openapi: "/openapi.json",
  operators: "/v1/ops",
  inferShape: "/v1/infer_shape",
  forward: "/v1/forward",
  backward: "/v1/backward",
  sessions: "/v1/sessions",
  adminSessions: "/v1/admin/sessions",
  cluster: "/v1/cluster",
  session: "/v1/sessions/{id}",
  adminSession: "/v1/admin/sessions/{id}",
  metrics: "/v1/history/{session}",
  history: "/v1/history",
  datasets: "/v1/datasets",
  executors: "/v1/sessions/{id}/executors",
  executor: "/v1/sessions/{id}/executors/{executor}",
  drawing: "/v1/sessions/{id}/executors/{executor}/drawings/{drawing}",
  models: "/v1/models",
  modelNetwork: "/v1/models/{model}/versions/{version}",
  modelDrawing: "/v1/models/{model}/versions/{version}/drawings/{drawing}",
  infer: "/v2/models/{model}/versions/{version}/infer",
  load: "/v2/repository/models/{model}/load",
  unload: "/v2/repository/models/{model}/unload",
};

/** The bytes of a body's JSON, where tensors follow it as bytes. */
const HEADER_LENGTH = "Inference-Header-Content-Length";

/** What the forms of operators begin with. */
export const PRESETS_FILE = "/page/presets.json";

/** A path with its parameters filled in. */
export function path(template, parameters) {
  return template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(parameters[name]));
}

/** What the server answered instead; `message` is its sentence. */
export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The token is this tab's, and this origin's: other ports of the machine see nothing of it, as they would of a cookie. */
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  clear: () => sessionStorage.removeItem(KEY),
};

/** Take the token out of the page's address (?token=… or #token=…), and out of the browser's history with it. */
export function takeTokenFromAddress() {
  const address = new URL(location.href);
  const inHash = new URLSearchParams(address.hash.startsWith("#/") ? "" : address.hash.slice(1));
  const text = address.searchParams.get("token") ?? inHash.get("token");
  if (text === null) return;
  if (text) token.set(text);
  history.replaceState(null, "", address.pathname + (address.hash.startsWith("#/") ? address.hash : ""));
}

const UNREACHABLE = "The server cannot be reached: it may have stopped, or the network is down.";

async function send(method, address, { body, headers = {}, signal } = {}) {
  try {
    return await fetch(at(address), {
      method,
      headers: { Authorization: `Bearer ${token.get()}`, Accept: "application/json", ...headers },
      body,
      signal,
      credentials: "omit",
      redirect: "error",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError(0, UNREACHABLE);
  }
}

async function refuse(response) {
  const answer = await response.json().catch(() => ({}));
  throw new CallError(response.status, answer.error ?? `The server answered ${response.status}.`);
}

/** Make a call; its JSON answer, or a CallError. */
export async function call(method, address, body) {
  const json = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const response = await send(method, address, json);
  return response.ok ? response.json() : refuse(response);
}

/** Make a call whose tensors travel as bytes behind the JSON; { header, payload } of the answer, or a CallError. */
export async function callWithBytes(method, address, header, payloads) {
  const head = new TextEncoder().encode(JSON.stringify(header));
  const headers = { "Content-Type": "application/octet-stream", [HEADER_LENGTH]: head.length };
  const response = await send(method, address, { body: new Blob([head, ...payloads]), headers });
  if (!response.ok) return refuse(response);
  const bytes = await response.arrayBuffer();
  const length = Number(response.headers.get(HEADER_LENGTH) ?? bytes.byteLength);
  return { header: JSON.parse(new TextDecoder().decode(bytes.slice(0, length))), payload: bytes.slice(length) };
}

/** Ask for a picture; the root of its SVG, or a CallError, for whose sentence it asks again. The browser parses it as the answer comes: a page that allows
    trusted types alone may not parse text. */
export function callForSvg(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", at(address));
    request.responseType = "document";
    request.setRequestHeader("Authorization", `Bearer ${token.get()}`);
    request.setRequestHeader("Accept", "image/svg+xml");
    request.onerror = () => reject(new CallError(0, UNREACHABLE));
    request.onload = () => {
      const root = request.status === 200 ? request.responseXML?.documentElement : null;
      if (root?.localName === "svg") resolve(root);
      else call("GET", address).then(() => reject(new CallError(request.status, "The server sent no drawing.")), reject);
    };
    request.send();
  });
}

/** Read the stream of events until it ends or `signal` stops it; each state goes to `onState`. */
export async function watch(onState, signal) {
  const response = await send("GET", PATHS.events, { signal });
  if (!response.ok) return refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return undefined;
    text += value;
    const messages = text.split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const fields = Object.fromEntries(message.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (fields.event === "state") onState(JSON.parse(fields.data));
    }
  }
}
