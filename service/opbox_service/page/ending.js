// Ending a session: who may, and the question before it.

import { call, path, PATHS } from "./api.js";
import { shortId } from "./format.js";
import { ask } from "./question.js";

const owns = (session, you) => session.owner === you.owner && you.scopes.includes("run");

/** Whether the caller is the session's owner, or an administrator. */
export function mayEnd(session, you) {
  return owns(session, you) || you.scopes.includes("admin");
}

/** Ask, and end the session when the answer is yes. */
export function askToEnd(session, you) {
  const whose = owns(session, you) ? "your session" : `a session of ${session.owner}`;
  ask({
    title: `End session ${shortId(session.id)}?`,
    text: `This is ${whose}. Its arrays and executors are freed at once, and the program that uses it gets an error at its next call.`,
    action: "End session",
    async onYes() {
      await call("DELETE", path(owns(session, you) ? PATHS.session : PATHS.adminSession, { id: session.id }));
      if (location.hash === `#/sessions/${session.id}`) location.hash = "#/";
    },
  });
}
