// The cluster behind a gateway: its nodes and where models are, and the sessions that other nodes have.

import { call, PATHS } from "./api.js";
import { figure, figures } from "./chart.js";
import { h, section, table, write } from "./dom.js";
import { bytes, count } from "./format.js";

let reached = false;
let absent = false;
let latest = null;
let others = [];
let trouble = "";
let reading = null;

/** Whether this server is a cluster's gateway, as far as it is known now. */
export const isGateway = () => reached;

/** Read the cluster anew, if this is a node of one. A node that is asked by itself has no such route, and is asked once. */
export function follow(state) {
  if (!state.server.node || absent) return undefined;
  reading ??= read(state).finally(() => (reading = null));
  return reading;
}

async function read(state) {
  try {
    latest = await call("GET", PATHS.cluster);
    reached = true;
    trouble = latest.controller_reached ? "" : "The controller is not reached: nodes and models as they were known last.";
    const path = state.you.scopes.includes("admin") ? PATHS.adminSessions : PATHS.sessions;
    const { sessions, unreached } = await call("GET", path);
    others = sessions.map((session) => ({ owner: state.you.owner, ...session }));
    if (unreached.length) trouble = `These nodes do not answer: ${unreached.join(", ")}.`;
  } catch (error) {
    if (!reached && error.status === 404) absent = true;
    if (reached) trouble = error.message;
  }
}

/** The state of the node that answers, with the other nodes' sessions. */
export function withOthers(state) {
  if (!reached) return state;
  const known = new Set(state.sessions.map((session) => session.id));
  const more = others.filter((session) => session.node !== state.server.node && !known.has(session.id));
  const sessions = [...state.sessions, ...more];
  return { ...state, sessions, server: { ...state.server, sessions: total(sessions.length) } };
}

/** The number of all sessions, where the token may know it; else of those that are shown. */
function total(shown) {
  const numbers = latest.nodes.map((node) => node.sessions);
  return numbers.some((number) => typeof number === "number") ? numbers.reduce((sum, number) => sum + (number ?? 0), 0) : shown;
}

/** Forget everything, when somebody else signs in. */
export function forget() {
  reached = absent = false;
  latest = null;
  others = [];
  trouble = "";
}

export function clusterView() {
  const nodes = figure("Nodes ready", { course: false });
  const sessions = figure("Sessions", { course: false });
  const waiting = figure("Sessions that wait", { course: false });
  const lost = h("p", { class: "error", role: "alert" });
  const reads = h("p", { class: "note", role: "status" }, "Reading the cluster…");
  const place = h("div", {});
  const modelTable = table(
    "Models and the nodes that serve them",
    [
      { title: "Model", header: true, cell: (row) => row.name },
      { title: "Replicas", number: true, cell: (row) => count(row.nodes.length) },
      { title: "Nodes", cell: (row) => row.nodes.join(", ") || "–" },
    ],
    (row) => row.name,
    "No model is served.",
  );
  const body = h("div", { class: "grid", hidden: true });
  let rows = null;

  return {
    title: "Cluster",
    node: h("div", {}, h("h1", { class: "unseen", tabindex: "-1" }, "Cluster"), lost, reads, body),
    update(state) {
      write(lost, trouble);
      if (latest === null) return;
      write(reads, "");
      const counted = "waiting" in latest;
      if (rows === null) {
        rows = nodeTable(counted);
        place.replaceChildren(rows.node);
        body.append(
          h("div", { class: "wide" }, counted ? figures(nodes, sessions, waiting) : figures(nodes)),
          h("div", { class: "wide" }, section("Nodes", place)),
          h("div", { class: "wide" }, section("Models on nodes", modelTable.node)),
        );
        body.hidden = false;
      }
      const ready = latest.nodes.filter((node) => node.state === "ready").length;
      nodes.update([], `${count(ready)} of ${count(latest.nodes.length)}`);
      if (counted) {
        sessions.update([], count(state.server.sessions));
        waiting.update([], count(Object.values(latest.waiting).reduce((sum, number) => sum + number, 0)));
      }
      rows.update(latest.nodes);
      modelTable.update(latest.models);
    },
  };
}

const shown = (number) => (typeof number === "number" ? count(number) : "–");

function nodeTable(counted) {
  const devices = (row, words) =>
    Object.entries(row.devices)
      .map(([device, memory]) => words(device, memory))
      .join(", ") || "–";
  return table(
    "Nodes of the cluster",
    [
      { title: "Node", header: true, cell: (row) => row.name },
      { title: "State", cell: (row) => row.state },
      { title: "Address", cell: (row) => row.url },
      { title: "Devices", cell: (row) => devices(row, (device) => device) },
      { title: "Free memory", cell: (row) => devices(row, (_, memory) => `${bytes(memory.free)} of ${bytes(memory.bytes)}`) },
      ...(counted
        ? [
            { title: "Sessions", number: true, cell: (row) => shown(row.sessions) },
            { title: "Queue", number: true, cell: (row) => shown(row.queue) },
          ]
        : []),
      { title: "In flight", number: true, cell: (row) => count(row.in_flight) },
      { title: "Models", cell: (row) => row.models.join(", ") || "–" },
    ],
    (row) => row.name,
    "No node has joined: opbox cluster join adds a machine.",
  );
}
