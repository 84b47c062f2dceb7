// A question before something that cannot be undone.

import { h, write } from "./dom.js";

/** Ask, and run onYes() when the answer is yes; the question stays, with the error, when that fails. */
export function ask({ title, text, action, onYes }) {
  const trouble = h("p", { role: "alert", class: "error" });
  const confirm = h("button", { type: "button", class: "danger" }, action);
  const cancel = h("button", { type: "button" }, "Cancel");
  const dialog = h(
    "dialog",
    { "aria-labelledby": "question-title", "aria-describedby": "question-text" },
    h("h2", { id: "question-title" }, title),
    h("p", { id: "question-text" }, text),
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
      await onYes();
      close();
    } catch (error) {
      write(trouble, error.message);
      confirm.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}
