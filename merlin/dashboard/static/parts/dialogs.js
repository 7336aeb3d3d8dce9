// Questions before something is done, and the list of keys.

import { fill, h } from "../base/dom.js";
import { act } from "../base/server.js";
import { button } from "./section.js";
import { say, trouble } from "./text.js";

/** A modal dialog, which takes itself away when it is closed; `leave` closes it, and has the focus. */
function modal(title, leave, children, ...buttons) {
  const id = "dialog-title";
  const close = button(leave, () => dialog.close());
  const dialog = h(
    "dialog",
    { "aria-labelledby": id },
    h("h2", { id }, title),
    children,
    h(".buttons", close, buttons),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  return dialog;
}

/** Asks, and acts only then; `done(sentence)` afterwards. */
export function confirmAction({ title, lines, verb, keep = "Leave it", path, body = {}, isGrave }, csrf, done) {
  const note = h("div", { "aria-live": "polite" });
  const go = button(
    verb,
    async () => {
      go.disabled = true;
      try {
        const answer = await act(path, body, csrf);
        dialog.close();
        say(answer.done);
        done(answer.done);
      } catch (error) {
        go.disabled = false;
        fill(note, trouble(error));
      }
    },
    isGrave ? "grave" : "main",
  );
  const dialog = modal(title, keep, [lines.map((line) => h("p", line)), note], go);
}

/** The keys that there are, as [title, {keys: words}]; `setting` turns them off. */
export function showKeys(groups, setting) {
  const pressed = (keys) => keys.split(" ").map((key) => [h("kbd", key), " "]);
  const list = (keys) =>
    h(
      "dl.keys",
      Object.entries(keys).map(([key, words]) => [h("dt", pressed(key)), h("dd", words)]),
    );
  modal("Keys", "Close", [groups.map(([title, keys]) => [h("h3", title), list(keys)]), setting]);
}
