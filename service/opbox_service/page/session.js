// One session: its figures, the curves that its program reports, and the networks that its executors run.

import { call, path, PATHS } from "./api.js";
import { figure, figures } from "./chart.js";
import { h, section, write } from "./dom.js";
import { askToEnd, mayEnd } from "./ending.js";
import { bytes, clock, count, devicesOf, duration, rate, shortId } from "./format.js";
import * as past from "./history.js";
import { networkView } from "./network.js";
import { queue, why } from "./overview.js";
import { training } from "./training.js";

export function sessionView(id) {
  const steps = figure("Steps per second");
  const memory = figure("Memory");
  const waiting = figure("Batches that wait");
  const facts = h("dl", { class: "facts" });
  const end = h("button", { type: "button", class: "danger", hidden: true }, "End session");
  const gone = h("p", { class: "note", role: "status" });
  const network = networks(id);
  const curves = training(id);
  const figureRow = figures(steps, memory, waiting);
  let session = null;
  let asked = false;
  let you = null;
  end.addEventListener("click", () => askToEnd(session, you));

  return {
    title: `Session ${shortId(id)}`,
    node: h(
      "div",
      { class: "grid" },
      h(
        "div",
        { class: "wide heading" },
        h("h1", { tabindex: "-1" }, "Session ", h("code", {}, shortId(id))),
        end,
      ),
      h("div", { class: "wide" }, gone, figureRow, facts),
      h("div", { class: "wide" }, curves.node),
      h("div", { class: "wide" }, network.node),
    ),
    update(state) {
      you = state.you;
      const now = state.sessions.find((one) => one.id === id);
      if (!now) {
        end.hidden = true;
        if (session) write(gone, "This session has ended.");
        if (!asked) showPast();
        return;
      }
      write(gone, "");
      figureRow.hidden = network.node.hidden = false;
      session = now;
      end.hidden = !mayEnd(session, you);
      const course = past.of(id);
      steps.update(course.rates, rate(course.rates.at(-1)));
      memory.update(course.bytes, bytes(session.bytes));
      waiting.update(course.waiting, queue(session));
      tell(facts, {
        ...named(session),
        Owner: session.owner,
        Device: devicesOf(session),
        "Memory by device": Object.entries(session.bytes_by_device ?? {})
          .map(([device, inUse]) => `${device} ${bytes(inUse)}`)
          .join(", "),
        Age: duration(session.age_s),
        Idle: `${duration(session.idle_s)} of ${duration(session.ttl_s)}`,
        Steps: count(session.steps),
        Executors: count(session.executors),
        Objects: count(session.objects),
        "Most memory so far": bytes(session.peak_bytes),
        "Memory it may have": bytes(session.limits.bytes),
        "Next batch": count(session.next_seq),
      });
      curves.update(session, you);
      network.update(session, you);
    },
  };

  /** Show what the history has of a session that has ended. */
  async function showPast() {
    asked = true;
    const record = await curves.load();
    if (record && !record.ended) {
      asked = false; // it begins or ends just now: the next state tells
      return;
    }
    if (!record) {
      if (!session) write(gone, "There is no such session, or it is somebody else's.");
      return;
    }
    write(gone, `This session has ended: ${why(record)}.`);
    if (session) return;
    figureRow.hidden = network.node.hidden = true;
    tell(facts, {
      ...named(record),
      Device: record.device,
      Began: clock(record.created),
      Lasted: duration(record.ended - record.created),
      Steps: count(record.steps),
    });
  }
}

const named = ({ script, host }) => ({ ...(script && { Program: script }), ...(host && { Host: host }) });

/** Write names and texts into a list of facts. */
export function tell(list, facts) {
  for (const [name, text] of Object.entries(facts)) {
    let value = list.querySelector(`[data-name="${name}"]`);
    if (!value) {
      value = h("dd", { "data-name": name });
      list.append(h("div", {}, h("dt", {}, name), value));
    }
    write(value, text);
  }
}

/** The executors to choose from, and the network of the one that is chosen. */
function networks(id) {
  const choice = h("select", { id: "executor" });
  const chooser = h("label", { class: "field", hidden: true }, h("span", {}, "Executor"), choice);
  const note = h("p", { class: "note", role: "status" }, "Nothing is bound yet.");
  const runs = h("p", { class: "note" });
  const place = h("div", {});
  let known = -1;
  let shown = null;
  let asked = 0;
  let executors = [];

  choice.addEventListener("change", () => show(Number(choice.value)));

  async function show(number) {
    shown = number;
    try {
      const executor = await call("GET", path(PATHS.executor, { id, executor: number }));
      const view = await networkView(executor.network, (drawing) => path(PATHS.drawing, { id, executor: number, drawing }));
      if (shown !== number) return;
      place.replaceChildren(view);
      write(note, "");
    } catch (error) {
      write(note, error.message);
    }
  }

  async function refresh(session) {
    known = session.executors;
    try {
      ({ executors } = await call("GET", path(PATHS.executors, { id })));
    } catch (error) {
      write(note, error.message);
      return;
    }
    const numbers = executors.map((executor) => executor.id);
    if (numbers.join() !== [...choice.options].map((option) => option.value).join()) {
      choice.replaceChildren(
        ...executors.map((executor) =>
          h("option", { value: executor.id }, `${executor.id}: ${executor.outputs.slice(0, 2).join(", ")} (${executor.nodes} nodes)`),
        ),
      );
    }
    chooser.hidden = executors.length < 2;
    if (!numbers.includes(shown)) {
      // The one that runs most is the one that somebody waits for.
      const busiest = executors.reduce((a, b) => (b.forwards > a.forwards ? b : a), executors[0]);
      place.replaceChildren();
      if (busiest) show(busiest.id);
      else shown = null;
    }
    if (shown !== null) choice.value = shown;
    describe();
  }

  function describe() {
    const executor = executors.find((one) => one.id === shown);
    write(
      runs,
      executor
        ? `${count(executor.forwards)} runs forward, ${count(executor.backwards)} backward; ${count(executor.steps)} calls of ` +
            `operators a step; ${bytes(executor.arena_bytes)} for what lies between them.`
        : "",
    );
  }

  return {
    node: section("Network", chooser, runs, note, place),
    update(session, you) {
      if (session.owner !== you.owner || !you.scopes.includes("run")) {
        write(note, `The network is shown to its owner, ${session.owner}.`);
        return;
      }
      if (session.executors === 0 && known <= 0) {
        write(note, "Nothing is bound yet.");
        return;
      }
      asked += 1;
      if (session.executors !== known || asked % 5 === 0) refresh(session);
    },
  };
}
