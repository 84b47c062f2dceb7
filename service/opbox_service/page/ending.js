// Ending a session: who may, and the question before it.

import { call, path, PATHS } from "./api.js";
import { h, write } from "./dom.js";

const owns = (session, you) => session.owner === you.owner && you.scopes.includes("run");

/** Whether the caller is the session's owner, or an administrator. */
export function mayEnd(session, you) {
  return owns(session, you) || you.scopes.includes("admin");
}

/** Ask, and end the session when the answer is yes. */
export function askToEnd(session, you) {
  const trouble = h("p", { role: "alert", class: "error" });
  const confirm = h("button", { type: "button", class: "danger" }, "End session");
  const cancel = h("button", { type: "button" }, "Cancel");
  const whose = owns(session, you) ? "your session" : `a session of ${session.owner}`;
  const dialog = h(
    "dialog",
    { "aria-labelledby": "end-title", "aria-describedby": "end-text" },
    h("h2", { id: "end-title" }, `End session ${session.id.slice(0, 8)}?`),
    h(
      "p",
      { id: "end-text" },
      `This is ${whose}. Its arrays and executors are freed at once, and the program that uses it gets an error at its next call.`,
    ),
    trouble,
    h("div", { class: "actions" }, cancel, confirm),
  );
  const close = () => {
    dialog.close();
    dialog.remove();
  };
  dialog.addEventListener("cancel", close);
  cancel.addEventListener("click", close);
  confirm.addEventListener("click", async () => {
    confirm.disabled = true;
    try {
      const route = owns(session, you) ? PATHS.session : PATHS.adminSession;
      await call("DELETE", path(route, { id: session.id }));
      close();
      if (location.hash === `#/sessions/${session.id}`) location.hash = "#/";
    } catch (error) {
      write(trouble, error.message);
      confirm.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}
