// The models that the server has for this owner, and their traffic: read again and again while a view shows them.

import { call, path, PATHS } from "./api.js";

/** Seconds between two readings at least; states come once a second. */
const EVERY_S = 1.5;
const SAMPLES = 150;

let latest = { rows: null, trouble: "" };
let asked = -Infinity;
const past = new Map();

const keyOf = (row) => `${row.name}/${row.version}`;

/** The models as they are known now; read anew when the last reading is some time ago, or at once where `anew`. */
export async function models(now, anew = false) {
  if (!anew && now - asked < EVERY_S) return latest;
  asked = now;
  try {
    const { models: rows } = await call("GET", PATHS.models);
    note(rows, performance.now() / 1000);
    latest = { rows, trouble: "" };
  } catch (error) {
    latest = { ...latest, trouble: error.message };
  }
  return latest;
}

/** Load a model, or load it again from its files. */
export const load = (name) => call("POST", path(PATHS.load, { model: name }), {});

/** Serve a model no more. */
export const unload = (name) => call("POST", path(PATHS.unload, { model: name }), {});

function note(rows, time) {
  const listed = new Set(rows.map(keyOf));
  for (const key of past.keys()) if (!listed.has(key)) past.delete(key);
  for (const row of rows) {
    const runs = Object.values(row.batches).reduce((sum, count) => sum + count, 0);
    const examples = Object.entries(row.batches).reduce((sum, [size, count]) => sum + size * count, 0);
    const now = { time, requests: row.requests, runs, examples };
    const key = keyOf(row);
    if (!past.has(key)) past.set(key, { last: now, rates: [], medians: [], tails: [], sizes: [] });
    const course = past.get(key);
    // The figures begin anew with each load.
    const from = now.requests < course.last.requests ? { ...now, requests: 0, runs: 0, examples: 0, time: course.last.time } : course.last;
    const seconds = now.time - from.time;
    push(course.rates, seconds > 0 ? (now.requests - from.requests) / seconds : 0);
    push(course.medians, row.p50_ms ?? 0);
    push(course.tails, row.p99_ms ?? 0);
    push(course.sizes, now.runs > from.runs ? (now.examples - from.examples) / (now.runs - from.runs) : 0);
    course.last = now;
  }
}

function push(list, value) {
  list.push(value);
  if (list.length > SAMPLES) list.shift();
}

/** Of one version: requests a second, median and 99th percentile in ms, examples a run, oldest first. */
export function courseOf(row) {
  return past.get(keyOf(row)) ?? { rates: [], medians: [], tails: [], sizes: [] };
}

/** Forget everything, when somebody else signs in. */
export function forget() {
  latest = { rows: null, trouble: "" };
  asked = -Infinity;
  past.clear();
}
