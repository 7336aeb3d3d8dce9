// Outcomes and states: one colour, one symbol and one word each, the same everywhere.

import { h, s, set, show, write } from "../base/dom.js";
import { num, percent } from "../base/format.js";

/** In the order of a bar; what is missing has not run. */
const SYMBOLS = { ok: "✓", failed: "✕", skipped: "↷", missing: "○" };
export const OUTCOMES = Object.keys(SYMBOLS);
export const STATES = {
  new: "○",
  running: "▶",
  stalled: "!",
  unknown: "?",
  finished: "✓",
  failed: "✕",
  stopped: "■",
  unreadable: "?",
  reading: "…",
};

const chip = (kind, symbol, word) => h(`span.chip.${kind}`, h("span.symbol", { "aria-hidden": "true" }, symbol), word);
export const outcomeChip = (outcome) => chip(`outcome-${outcome}`, SYMBOLS[outcome], outcome);

/** The state of a study. `update({state})`. */
export function stateChip() {
  const node = h("span");
  const update = ({ state }) =>
    node.textContent.endsWith(state) || node.replaceChildren(chip(`state-${state}`, STATES[state] ?? "?", state));
  return { node, update };
}

export const ended = ({ ok, failed, skipped }) => ok + failed + skipped;
export const done = (counts) => percent(ended(counts), counts.planned);

/** "63.2 % done: 632 104 ok, 312 failed" for those who do not see the bar. */
export function said(counts) {
  const parts = OUTCOMES.filter((name) => counts[name]).map((name) => `${num(counts[name])} ${name}`);
  return `${done(counts)} done: ${parts.join(", ") || "no tasks"}`;
}

/** A bar of outcomes in proportion, in which a single failure of a million can be seen. `update(counts)`. */
export function outcomeBar(size = "thin") {
  const pieces = OUTCOMES.map((name) => [name, h(`span.piece.fill-${name}`)]);
  const node = h(
    `.bar.${size}`,
    { role: "img" },
    pieces.map(([, piece]) => piece),
  );
  const update = (counts) => {
    set(node, "aria-label", said(counts));
    for (const [name, piece] of pieces) {
      show(piece, counts[name] > 0);
      piece.style.flexGrow = counts[name] ?? 0; // by the CSSOM: a style attribute is against the page's policy
    }
  };
  return { node, update };
}

/** The same in an SVG. */
export function outcomeBarSvg(x, y, width, height) {
  const pieces = OUTCOMES.slice(0, 3).map((name) => [name, s(`rect.svg-${name}`, { y, height })]);
  const track = s("rect.svg-missing", { x, y, width, height, rx: height / 2 });
  const update = (counts) => {
    let at = x;
    for (const [name, piece] of pieces) {
      const wide = counts[name] ? Math.min(Math.max((width * counts[name]) / counts.planned, 2), x + width - at) : 0;
      set(piece, "x", at.toFixed(1));
      set(piece, "width", wide.toFixed(1));
      at += wide;
    }
  };
  return {
    node: s(
      "g",
      { "aria-hidden": "true" },
      track,
      pieces.map(([, piece]) => piece),
    ),
    update,
  };
}

export const swatch = (outcome) => h(`i.swatch.fill-${outcome}`, { "aria-hidden": "true" }, SYMBOLS[outcome]);

/** planned = ok + failed + skipped + missing, with the colours of the bar. `update(counts)`. */
export function reconciliation() {
  const planned = h("b");
  const terms = OUTCOMES.map((name, index) => {
    const value = h("b");
    return { name, value, node: h("span.term", h("span.sign", index ? "+" : "="), swatch(name), value, ` ${name}`) };
  });
  const update = (counts) => {
    write(planned, num(counts.planned));
    for (const { name, value, node } of terms) {
      write(value, num(counts[name]));
      set(node, "class", counts[name] ? "term" : "term none");
    }
  };
  return {
    node: h(
      "p.reconciled",
      h("span.term", planned, " planned"),
      terms.map(({ node }) => node),
    ),
    update,
  };
}
