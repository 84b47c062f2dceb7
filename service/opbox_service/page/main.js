// The page: signing in, the stream of events, and which view is shown.

import { at, takeTokenFromAddress, token, watch } from "./api.js";
import { catalogue } from "./catalogue.js";
import { clusterView, follow as followCluster, forget as forgetCluster, isGateway, withOthers } from "./cluster.js";
import { h, write } from "./dom.js";
import { forget, note } from "./history.js";
import { modelView } from "./model.js";
import { modelsView } from "./models.js";
import { overview } from "./overview.js";
import { sessionView } from "./session.js";
import { forget as forgetModels } from "./traffic.js";

const RETRY_MS = [500, 1000, 2000, 5000];
const main = document.getElementById("main");
const connection = document.getElementById("connection");
let view = null;
let state = null;
let stream = null;

/** The view that the address names: #/, #/sessions/ID, #/models, #/models/NAME/VERSION, #/cluster, #/ops, #/ops/NAME. */
function chosen() {
  const [, first, second, third] = location.hash.split("/").map(decodeURIComponent);
  if (first === "sessions" && second) return sessionView(second);
  if (first === "models") return second && third ? modelView(second, third) : modelsView();
  if (first === "cluster" && isGateway()) return clusterView();
  if (first === "ops") return catalogue(second);
  return overview();
}

function show(next, { focus = true } = {}) {
  view = next;
  document.title = `${view.title} · opbox`;
  main.replaceChildren(view.node);
  if (state) view.update(state);
  const links = [...document.querySelectorAll("#views a")];
  // The HTTP API is a page of its own, whose link has no hash; what belongs to no other view belongs to the overview.
  const current = links.slice(1).find((link) => link.hash && location.hash.startsWith(link.hash)) ?? links[0];
  for (const link of links) {
    if (link === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (focus) (view.node.querySelector("h1") ?? main).focus();
}

function signInView(message) {
  const field = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, spellcheck: "false" });
  const trouble = h("p", { class: "error", role: "alert", id: "token-error" }, message ?? "");
  field.setAttribute("aria-describedby", "token-help token-error");
  const form = h(
    "form",
    { class: "panel sign-in" },
    h("h1", { tabindex: "-1" }, "Sign in"),
    h("label", { class: "field", for: "token" }, h("span", {}, "Token"), field),
    h("p", { class: "note", id: "token-help" }, "opbox serve prints it, with a link that signs in by itself."),
    trouble,
    h("div", { class: "actions" }, h("button", { class: "main" }, "Sign in")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    follow();
  });
  return { title: "Sign in", node: form, update() {} };
}

function signOut(message) {
  stream?.abort();
  stream = null;
  token.clear();
  state = null;
  forget();
  forgetModels();
  forgetCluster();
  document.getElementById("views").hidden = document.getElementById("who").hidden = true;
  show(signInView(message), { focus: false });
  document.getElementById("token").focus();
}

async function take(next) {
  if (location.hash === "#/docs") {
    location.replace(at("/docs"));
    return;
  }
  const first = state === null;
  const own = stream;
  if (first) await followCluster(next);
  else followCluster(next);
  if (stream !== own) return;
  state = withOthers(next);
  note(state);
  document.getElementById("cluster").hidden = !isGateway();
  write(connection, "Live");
  connection.className = "live";
  if (first) {
    document.getElementById("views").hidden = document.getElementById("who").hidden = false;
    document.getElementById("owner").textContent = state.you.owner;
    show(chosen(), { focus: false });
  } else view.update(state);
}

/** Follow the events, again and again, until the token is refused or somebody signs out. */
async function follow() {
  const own = (stream = new AbortController());
  for (let tries = 0; stream === own; ) {
    try {
      await watch((next) => {
        tries = 0;
        take(next);
      }, own.signal);
    } catch (error) {
      if (stream !== own) return;
      if (error.status === 401 || error.status === 403) {
        signOut(error.message);
        return;
      }
      if (state === null) write(document.getElementById("token-error") ?? connection, error.message);
    }
    if (stream !== own) return;
    write(connection, "Connecting…");
    connection.className = "lost";
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
    tries += 1;
  }
}

// A browser has few connections for a server: a page that is left gives its own back, and takes one if it is shown again.
window.addEventListener("pagehide", () => {
  stream?.abort();
  stream = null;
});
window.addEventListener("pageshow", (event) => {
  if (event.persisted && token.get()) follow();
});
document.getElementById("sign-out").addEventListener("click", () => signOut());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) takeTokenFromAddress();
  else if (state) show(chosen());
});

takeTokenFromAddress();
show(signInView(), { focus: false });
if (token.get()) follow();
else document.getElementById("token").focus();
