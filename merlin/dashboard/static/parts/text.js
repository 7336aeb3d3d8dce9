// Small parts of text: moments, commands to copy, notes, and what a screen reader says by itself.

import { fill, h, set, write } from "../base/dom.js";
import { clock, utc } from "../base/format.js";
import { button } from "./section.js";

/** Speaks of changes of state and answers to the reader; never of numbers every second. */
export function say(sentence) {
  const spoken = document.getElementById("spoken");
  write(spoken, "");
  requestAnimationFrame(() => write(spoken, sentence));
}

/** A moment in the reader's own time, with UTC when one points at it. */
export function moment(epoch, options, node = h("time")) {
  write(node, epoch == null ? "" : clock(epoch, options));
  set(node, "title", utc(epoch) || null);
  set(node, "datetime", epoch == null ? null : new Date(epoch * 1e3).toISOString());
  return node;
}

/** A text in a box, with a button that copies it. */
export function copyable(text, what = "command") {
  const code = h("code", text);
  const copy = button(
    "Copy",
    async () => {
      try {
        await navigator.clipboard.writeText(text);
        write(copy, "Copied");
        say(`The ${what} is copied.`);
        setTimeout(() => write(copy, "Copy"), 2000);
      } catch {
        // browsers copy over TLS and on this machine only; elsewhere it is selected for Ctrl-C
        getSelection().selectAllChildren(code);
        say(`The ${what} is selected.`);
      }
    },
    "small",
  );
  set(copy, "aria-label", `Copy the ${what}`);
  return h("span.copyable", code, copy);
}

/** Nothing is wrong, and nothing is there. */
export const nothing = (sentence) => h("p.nothing", sentence);
export const waiting = () => h("p.nothing.waiting", "Loading …");
export const trouble = ({ message }) => h("p.note", message);
export const path = (text) => text && h("code.path", text);
export const log = (label, text = "") => h("pre.log", { tabindex: "0", role: "group", "aria-label": label }, text);

/** Runs `load`; what goes wrong is said in `note`, unless the reader has left. */
export async function attempt(note, { signal }, load) {
  try {
    const found = await load();
    if (note.querySelector(".note, .waiting")) fill(note);
    return found;
  } catch (error) {
    if (!signal.aborted) fill(note, trouble(error));
  }
}

/** Names and values, without those that are empty. */
export function facts(...pairs) {
  const given = pairs.filter(([, value]) => value != null && value !== "");
  return h(
    "dl.facts",
    given.map(([name, value]) => [h("dt", name), h("dd", value)]),
  );
}
