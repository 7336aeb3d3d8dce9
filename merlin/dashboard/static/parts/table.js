// Tables that are updated in place.

import { fill, h, keyed, set, write } from "../base/dom.js";
import { num } from "../base/format.js";

/**
 * Columns of texts, of numbers, and of parts with `update(row)`. `of` is a key of the rows or `(row) => value`; null is
 * an empty cell. `kind`: classes of the cells.
 */
export const text = (head, of, kind = "", title = null) => ({
  head,
  of: typeof of === "string" ? (row) => row[of] : of,
  kind,
  title,
});
export const cell = (head, make, kind = "") => ({ head, make, kind });
export function number(head, of, format = num, kind = "", title = null) {
  const value = text(head, of).of;
  return text(head, (row) => (value(row) == null ? "" : format(value(row))), `n ${kind}`, title);
}

/** The first column heads the rows; `key` names one. `update(rows)`. */
export function table(caption, key, columns, rowClass = () => null) {
  const body = h("tbody");
  const heads = columns.map(({ head, kind, title }) => h("th", { scope: "col", class: kind || null, title }, head));
  const whole = h("table", h("caption.unseen", caption), h("thead", h("tr", heads)), body);
  const keyOf = typeof key === "function" ? key : (row) => row[key];
  return {
    node: scrolling(caption, whole),
    update: (rows) => keyed(body, rows, keyOf, () => tableRow(columns, rowClass)),
  };
}

function tableRow(columns, rowClass) {
  const cells = columns.map(({ make, of, kind }, index) => {
    const part = make?.();
    const node = h(index ? "td" : "th", { class: kind || null, scope: index ? null : "row" }, part?.node);
    return { node, update: (row) => (part ? part.update(row) : write(node, of(row))) };
  });
  const node = h(
    "tr",
    cells.map((one) => one.node),
  );
  const update = (row) => {
    set(node, "class", rowClass(row) || null);
    for (const one of cells) one.update(row);
  };
  return { node, update };
}

/** A box that scrolls sideways when it must, so that the page does not; reachable by keyboard. */
export const scrolling = (label, ...children) =>
  h(".scroll", { role: "group", tabindex: "0", "aria-label": label }, children);

/** A link: `of(row)` returns its place and its text; no text, no link. */
export function link(of, kind = "") {
  return () => {
    const node = h("a", { class: kind || null });
    const update = (row) => {
      const [place, words] = of(row);
      set(node, "href", words ? place : null);
      write(node, words);
    };
    return { node, update };
  };
}

/** The numbers of a picture, as a table that is made when somebody opens it; `rows()` returns arrays. */
export function asTable(heads, rows) {
  const details = h("details.as-table", h("summary", "As a table"), h("div"));
  const columns = heads.map((head, index) => text(head, (row) => row[index], index ? "n" : ""));
  details.addEventListener("toggle", () => {
    const list = table("Numbers of the picture", 0, columns);
    if (details.open) list.update(rows());
    fill(details.lastChild, details.open && list.node);
  });
  return details;
}
