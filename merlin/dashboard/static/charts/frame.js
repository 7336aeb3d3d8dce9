// What all pictures share: a box with a readout, a cursor for the pointer and for keys, and axes.

import { fill, h, s, set } from "../base/dom.js";

/**
 * A picture that `draw(width)` draws whenever its box or its colours change. `steps` are what keys do: from a cursor
 * (null: none) to the next one; `at(event)` is the cursor at a pointer, and `enter(cursor)` what a click does.
 */
export class Frame {
  cursor = null;

  constructor(canvas, { label, steps, at, draw, enter }) {
    this.readout = h("p.readout");
    this.canvas = canvas;
    this.box = h(".chart-box", { tabindex: "0", role: "group", "aria-label": label }, canvas);
    this.node = h("div", this.readout, this.box);
    this.draw = () => draw(this.box.clientWidth);
    new ResizeObserver(this.draw).observe(this.box);
    new MutationObserver(this.draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    canvas.addEventListener("pointermove", (event) => this.#move(at(event)));
    canvas.addEventListener("pointerleave", () => this.#move(null));
    canvas.addEventListener("click", (event) => enter?.(at(event)));
    this.box.addEventListener("blur", () => this.#move(null));
    this.box.addEventListener("keydown", (event) => this.#press(event, steps, enter));
  }

  #move(cursor) {
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.draw();
  }

  #press(event, steps, enter) {
    if (event.key === "Enter") enter?.(this.cursor);
    if (!(event.key in steps)) return;
    event.preventDefault();
    set(this.readout, "aria-live", "polite"); // the reader moves the cursor, and wants to hear of it
    this.#move(steps[event.key](this.cursor));
  }
}

export const HEIGHT = 200;
export const PAD = { left: 52, right: 12, top: 10, bottom: 24 };
export const FLOOR = HEIGHT - PAD.bottom;

/** An SVG for axes, and the share of its width at which a pointer is. */
export function plot() {
  const svg = s("svg.chart", { role: "img", height: HEIGHT });
  const shareAt = ({ clientX }) => {
    const { left, width } = svg.getBoundingClientRect();
    return Math.max(0, Math.min(0.9999, (clientX - left - PAD.left) / (width - PAD.left - PAD.right)));
  };
  return { svg, shareAt };
}

/** Draws into an SVG: `xs` and `ys` are [value, words] of the ticks. */
export function drawPlot(svg, width, { x, y, xs, ys }, ...content) {
  sized(svg, width, HEIGHT);
  const right = width - PAD.right;
  fill(
    svg,
    ys.map(([value, words]) => [
      s("line.grid", { x1: PAD.left, x2: right, y1: y(value), y2: y(value) }),
      label(PAD.left - 6, y(value) + 4, words, "end"),
    ]),
    xs.map(([value, words]) => label(Math.max(PAD.left + 12, Math.min(x(value), width - 28)), HEIGHT - 6, words)),
    content,
  );
}

export function sized(svg, width, height) {
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height }))
    set(svg, name, value);
}

export const label = (x, y, words, anchor = "middle") => s("text.axis", { x, y, "text-anchor": anchor }, String(words));

/** In place of a picture. */
export function drawNothing(svg, width, words) {
  sized(svg, width, HEIGHT);
  fill(svg, label(width / 2, HEIGHT / 2, words));
  set(svg, "aria-label", words);
}
