// The first view: devices, sessions, requests, workers, errors, as they are now.

import { call, PATHS } from "./api.js";
import { bar, figure, figures } from "./chart.js";
import { h, keyed, section, table, write } from "./dom.js";
import { bytes, clock, count, devicesOf, duration, ms, rate, shortId } from "./format.js";
import * as past from "./history.js";
import { isGateway } from "./cluster.js";
import { askToEnd, mayEnd } from "./ending.js";
import { number } from "./plot.js";

export function overview() {
  const requests = figure("Requests per second");
  const latency = figure("95% answered within");
  const memory = figure("Memory of sessions");
  const sessions = figure("Sessions", { course: false });
  const uptime = figure("Up for", { course: false });
  const ofNode = h("p", { class: "note" });

  const devices = h("div", { class: "bars" });
  const computes = h("p", { class: "note" });
  const updateDevices = keyed(devices, deviceRow);
  const sessionTable = sessionsTable();
  const pastTable = pastSessions();
  const lastSessions = section("Last sessions", pastTable.node);
  const datasetTable = datasets();
  const ownDatasets = section("Datasets", datasetTable.node);
  const routeTable = table(
    "Requests of the last ten seconds by route",
    [
      { title: "Route", header: true, cell: (row) => row.route },
      { title: "Per second", number: true, cell: (row) => rate(row.per_second) },
      { title: "Median", number: true, cell: (row) => ms(row.p50_ms) },
      { title: "95%", number: true, cell: (row) => ms(row.p95_ms) },
      { title: "99%", number: true, cell: (row) => ms(row.p99_ms) },
      { title: "Errors", number: true, cell: (row) => count(row.errors) },
    ],
    (row) => row.route,
    "No requests in the last ten seconds.",
  );
  const workerTable = table(
    "Processes",
    [
      { title: "Process", header: true, cell: (row) => row.name },
      { title: "Sessions", number: true, cell: (row) => (row.sessions === null ? "–" : count(row.sessions)) },
      { title: "Memory", number: true, cell: (row) => bytes(row.resident_bytes) },
    ],
    (row) => row.name,
    "",
  );
  const restarts = h("p", { class: "note" });
  const workers = section("Workers", workerTable.node, restarts);
  const errorTable = table(
    "Recent errors",
    [
      { title: "Time", cell: (row) => clock(row.time) },
      { title: "Status", cell: (row) => String(row.status) },
      { title: "Owner", cell: (row) => row.owner || "nobody" },
      { title: "Request", cell: (row) => `${row.method} ${row.path}` },
      { title: "Error", header: true, cell: (row) => row.error },
    ],
    (row) => `${row.request_id} ${row.time}`,
    "No errors.",
  );

  return {
    title: "Overview",
    node: h(
      "div",
      { class: "grid" },
      h("h1", { class: "unseen", tabindex: "-1" }, "Overview"),
      h("div", { class: "wide" }, ofNode, figures(requests, latency, memory, sessions, uptime)),
      h("div", { class: "wide" }, section("Sessions", sessionTable.node)),
      h("div", { class: "wide" }, lastSessions),
      h("div", { class: "wide" }, ownDatasets),
      section("Devices", devices, computes),
      workers,
      h("div", { class: "wide" }, section("Requests", routeTable.node)),
      h("div", { class: "wide" }, section("Recent errors", errorTable.node)),
    ),
    update(state) {
      write(ofNode, nodeNote(state.server.node));
      requests.update(past.overall.requests, rate(state.requests.per_second));
      latency.update(past.overall.latencies, ms(state.requests.p95_ms));
      memory.update(past.overall.inUse, bytes(past.overall.inUse.at(-1)));
      sessions.update([], count(state.server.sessions ?? state.sessions.length));
      uptime.update([], duration(state.server.uptime_s));
      updateDevices(byDevice(state.devices), (row) => row.device);
      write(computes, `cpu: ${state.server.cpu}${state.server.gpu ? `; gpu: ${state.server.gpu}` : ""}`);
      sessionTable.update(state.sessions.map((session) => ({ ...session, you: state.you })));
      lastSessions.hidden = !state.you.scopes.includes("run");
      pastTable.update(state);
      ownDatasets.hidden = lastSessions.hidden;
      datasetTable.update(state);
      routeTable.update(state.requests.routes);
      errorTable.update(state.errors);
      workers.hidden = !state.workers;
      if (state.workers) {
        workerTable.update(state.workers);
        const ended = Object.values(state.server.code_deaths ?? {}).reduce((sum, number) => sum + number, 0);
        const words = [`${count(state.server.restarts)} workers replaced after they ended`];
        if (ended) words.push(`${count(ended)} processes of sessions with code ended`);
        write(restarts, `${words.join(", ")}.`);
      }
    },
  };
}

/** Whose figures these are, where the server is one of a cluster's. */
function nodeNote(node) {
  if (!node) return "";
  return `Node ${node} of a cluster.${isGateway() ? " Its figures; sessions are those of all nodes. Cluster shows the others." : ""}`;
}

/** One row for each device: its workers' parts together. Sessions with code (worker 0) take from what the others leave. */
function byDevice(rows) {
  const devices = new Map();
  for (const row of rows) {
    const sum = devices.get(row.device) ?? { ...row, used_bytes: 0, limit_bytes: 0 };
    sum.used_bytes += row.used_bytes;
    if (row.worker !== 0) sum.limit_bytes += row.limit_bytes;
    devices.set(row.device, sum);
  }
  return [...devices.values()];
}

function deviceRow(first) {
  const ofSessions = bar("Sessions");
  const ofAll = bar("All programs");
  const kernels = h("p", { class: "kernels" });
  return {
    node: h("div", { class: "device" }, h("h3", {}, first.device), ofSessions.node, ofAll.node, kernels),
    update(row) {
      ofSessions.update(row.used_bytes, row.limit_bytes, `${bytes(row.used_bytes)} of ${bytes(row.limit_bytes)}`);
      const words = `${bytes(row.memory_used_bytes)} of ${bytes(row.memory_bytes)}`;
      ofAll.update(row.memory_used_bytes, row.memory_bytes, words);
      kernels.hidden = !row.kernels;
      write(kernels, row.kernels ?? "");
    },
  };
}

function sessionsTable() {
  const link = (session) =>
    h("a", { href: `#/sessions/${session.id}`, "aria-label": `Session ${session.id}` }, shortId(session.id));
  const end = (session) =>
    mayEnd(session, session.you) &&
    h(
      "button",
      { type: "button", class: "danger", "aria-label": `End session ${session.id}`, onclick: () => askToEnd(session, session.you) },
      "End",
    );
  return table(
    "Open sessions",
    [
      { title: "Session", header: true, node: link },
      { title: "Owner", cell: (session) => session.owner },
      { title: "Program", cell: (session) => session.script || "–" },
      { title: "Device", cell: devicesOf },
      { title: "Age", number: true, cell: (session) => duration(session.age_s) },
      { title: "Executors", number: true, cell: (session) => count(session.executors) },
      { title: "Steps", number: true, cell: (session) => count(session.steps) },
      { title: "Steps/s", number: true, cell: (session) => rate(past.stepsPerSecond(session.id)) },
      { title: "Queue", number: true, cell: (session) => queue(session) },
      { title: "Memory", number: true, cell: (session) => bytes(session.bytes) },
      { title: "Action", node: (session) => end(session) || "" },
    ],
    (session) => session.id,
    "No sessions are open. A script with OPBOX_URL set to this address opens one.",
  );
}

/** The owner's sessions that have ended, read anew when there is another. */
function pastSessions() {
  const link = (session) =>
    h("a", { href: `#/sessions/${session.id}`, "aria-label": `Session ${session.id}` }, shortId(session.id));
  const rows = table(
    "Sessions that have ended",
    [
      { title: "Session", header: true, node: link },
      { title: "Program", cell: (session) => session.script || "–" },
      { title: "Host", cell: (session) => session.host || "–" },
      { title: "Began", number: true, cell: (session) => clock(session.created) },
      { title: "Lasted", number: true, cell: (session) => duration(session.ended - session.created) },
      { title: "Steps", number: true, cell: (session) => count(session.steps) },
      { title: "Reported", cell: (session) => reported(session.latest) },
      { title: "Ended", cell: why },
    ],
    (session) => session.id,
    "None of yours has ended since the server started.",
  );
  let known = -1;
  return {
    node: rows.node,
    async update(state) {
      if (state.ended === known || !state.you.scopes.includes("run")) return;
      known = state.ended;
      try {
        rows.update((await call("GET", PATHS.history)).sessions.filter((session) => session.ended !== null));
      } catch {
        known = -1;
      }
    },
  };
}

const DATASETS_S = 10;

/** The owner's datasets and the published ones, read anew every ten seconds. */
function datasets() {
  const rows = table(
    "Datasets that the server has under a name",
    [
      { title: "Dataset", header: true, cell: (dataset) => dataset.name },
      { title: "Owner", cell: (dataset) => dataset.owner },
      { title: "Arrays", cell: (dataset) => dataset.arrays.map(shapeOf).join(", ") },
      { title: "Size", number: true, cell: (dataset) => bytes(dataset.bytes) },
      { title: "Published", cell: (dataset) => (dataset.published ? "yes" : "no") },
    ],
    (dataset) => `${dataset.owner}/${dataset.name}`,
    "None. mx.datasets.put(name, arrays) stores one.",
  );
  let asked = -Infinity;
  return {
    node: rows.node,
    async update(state) {
      if (state.time - asked < DATASETS_S || !state.you.scopes.includes("run")) return;
      asked = state.time;
      try {
        rows.update((await call("GET", PATHS.datasets)).datasets);
      } catch {
        asked = -Infinity;
      }
    },
  };
}

function shapeOf(array) {
  return `${array.name} ${array.shape.join(" × ")} ${array.dtype}`;
}

function reported(latest) {
  const words = Object.entries(latest).map(([name, value]) => `${name} ${number(value)}`);
  return words.length ? words.join(", ") : "–";
}

/** Why a session has ended, without its id and what its program is to do. */
export function why({ id, reason }) {
  return reason.replace(`session ${id} `, "").replace(/: make a new .*/, "");
}

/** Batches that wait in the session, and calls before its next one on the worker. */
export function queue(session) {
  const before = session.calls_before ? ` + ${count(session.calls_before)} before` : "";
  return `${count(session.waiting)}${before}`;
}
