// A file of a task: read when it is opened, its end first, because the end of a log says what happened.

import { fill, h, show, write } from "../base/dom.js";
import { bytes } from "../base/format.js";
import { api } from "../base/routes.js";
import { ask } from "../base/server.js";
import { button } from "./section.js";
import { attempt, log } from "./text.js";

const PART = 65536;

/** `file`: {name, size} of a task. */
export function fileView({ name, size }, { instance, task }, id, app) {
  const [text, note] = [log(`Content of ${name}`), h("div")];
  const [before, after] = [
    button("", () => load(Math.max(0, from - PART), from)),
    button("Show more", () => load(to, to + PART)),
  ];
  let [from, to] = [size, size]; // what is shown
  const load = (lo, hi) =>
    attempt(note, app, async () => {
      const part = await ask(api.study(id, "file", { instance, task, name, offset: lo, limit: hi - lo }), app);
      if (!part.is_text) return fill(note, "This is no text. Download it to look at it.");
      text[lo < from ? "prepend" : "append"](part.text);
      [from, to] = [Math.min(from, lo), Math.max(to, part.next_offset ?? part.size)];
      show(before, from > 0);
      write(before, `Show what is before, ${bytes(from)}`);
      show(after, to < part.size);
      if (!part.size) write(text, "(empty)");
    });
  const whole = h(
    "a",
    { href: api.study(id, "raw", { instance, task, name }), download: name.split("/").at(-1) },
    "Download",
  );
  const title = h("summary", h("code", name), h("span.small", bytes(size)));
  const details = h("details.file", title, h("p.file-tools", whole), note, before, text, after);
  for (const node of [before, after]) show(node, false);
  details.addEventListener("toggle", () => details.open && !text.textContent && load(Math.max(0, size - PART), size));
  return details;
}
