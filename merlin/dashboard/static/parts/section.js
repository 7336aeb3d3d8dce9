// A titled part of a page, and what stands at its right.

import { h, write } from "../base/dom.js";

let made = 0;

/** `tools` stand at the right of the title, `say(text)` writes beside it. */
export function section(title, tools, ...children) {
  const id = `section-${(made += 1)}`;
  const aside = h("span.aside");
  const head = h(".section-head", h("h2", { id }, title), aside, h(".right", tools));
  const body = h(".section-body", children);
  const node = h("section.card", { "aria-labelledby": id }, head, body);
  return { node, body, say: (text) => write(aside, text) };
}

/** The same, for what never changes. */
export const card = (title, ...children) => section(title, [], children).node;

/** A labelled choice. `update(options, value)`: options are [value, words]. */
export function choice(label, onChange) {
  const node = h("select", { "aria-label": label, on: { change: () => onChange(node.value) } });
  let known = "";
  const update = (options, value) => {
    if (`${options}` !== known)
      node.replaceChildren(...options.map(([name, words = name]) => h("option", { value: name }, words)));
    known = `${options}`;
    if (node.value !== value) node.value = value;
  };
  return { node, update };
}

export const button = (words, click, kind = "") =>
  h("button", { type: "button", class: kind || null, on: { click } }, words);

/** A box to tick. */
export function tick(words, isOn, onChange) {
  const box = h("input", { type: "checkbox", on: { change: () => onChange(box.checked) } });
  box.checked = isOn;
  return h("label.setting", box, words);
}
