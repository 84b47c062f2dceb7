// What went before: the server tells how things are, the page remembers how they were.

const SAMPLES = 150;
const SMOOTH_S = 5;

const requests = [];
const latencies = [];
const inUse = [];
const sessions = new Map();

function push(list, value) {
  list.push(value);
  if (list.length > SAMPLES) list.shift();
}

/** Note a state. */
export function note(state) {
  push(requests, state.requests.per_second);
  push(latencies, state.requests.p95_ms ?? 0);
  push(inUse, state.sessions.reduce((sum, session) => sum + session.bytes, 0));
  const open = new Set(state.sessions.map((session) => session.id));
  for (const id of sessions.keys()) if (!open.has(id)) sessions.delete(id);
  for (const session of state.sessions) {
    let past = sessions.get(session.id);
    if (!past) sessions.set(session.id, (past = { samples: [], rates: [], bytes: [], waiting: [] }));
    push(past.samples, { time: state.time, steps: session.steps });
    push(past.rates, speed(past.samples));
    push(past.bytes, session.bytes);
    push(past.waiting, session.waiting);
  }
}

function speed(samples) {
  const last = samples.at(-1);
  const first = samples.find((sample) => last.time - sample.time <= SMOOTH_S);
  return last.time > first.time ? Math.max(0, last.steps - first.steps) / (last.time - first.time) : 0;
}

/** Of all: requests per second, their 95th percentile in ms, and bytes of the sessions that are listed. */
export const overall = { requests, latencies, inUse };

/** Of one session: steps per second, bytes, batches that wait; empty where nothing is known. */
export function of(id) {
  return sessions.get(id) ?? { rates: [], bytes: [], waiting: [] };
}

/** Steps per second now. */
export function stepsPerSecond(id) {
  return of(id).rates.at(-1) ?? 0;
}

/** Forget everything, when somebody else signs in. */
export function forget() {
  requests.length = latencies.length = inUse.length = 0;
  sessions.clear();
}
