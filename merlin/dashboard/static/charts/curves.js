// Losses and metrics over the steps of training, a line for each trainer.

import { fill, h, s, set } from "../base/dom.js";
import { num, real } from "../base/format.js";
import { FLOOR, Frame, PAD, drawNothing, drawPlot, plot } from "./frame.js";
import { linear, logTicks, logarithmic, ticks } from "./scale.js";

const NUM_COLOURS = 8;
const MOST_NAMED = 8; // trainers in the readout

/** The class of a trainer's line: eight colours, then the same dashed. */
export const lineClass = (trainer) => `line-${trainer % NUM_COLOURS}${trainer >= NUM_COLOURS ? " is-dashed" : ""}`;
export const lineSwatch = (trainer) => h("i", { class: `swatch ${lineClass(trainer)}`, "aria-hidden": "true" });

/** `update(curves, isLog)`: curves are [{trainer, steps, values}]. */
export function curveChart(name) {
  const { svg, shareAt } = plot();
  const chart = { name, svg, curves: [], isLog: false };
  const step = (by) => (cursor) => Math.max(0, Math.min(1, (cursor ?? 1) + by));
  chart.frame = new Frame(svg, {
    label: `${name}; arrow keys move along it`,
    draw: (width) => draw(chart, width),
    at: shareAt,
    steps: { ArrowLeft: step(-0.02), ArrowRight: step(0.02), Home: () => 0, End: () => 1 },
  });
  return {
    node: h(".curve", h("h3", name), chart.frame.node),
    update(curves, isLog) {
      Object.assign(chart, { curves, isLog });
      chart.frame.draw();
    },
  };
}

/** The points of a curve that can be drawn. */
function pointsOf({ steps, values }, isLog) {
  return steps.map((step, at) => [step, values[at]]).filter(([, value]) => value != null && (!isLog || value > 0));
}

function draw(chart, width) {
  const { svg, curves, isLog, frame } = chart;
  const lines = curves
    .map((curve) => ({ trainer: curve.trainer, points: pointsOf(curve, isLog) }))
    .filter(({ points }) => points.length);
  if (!lines.length) return drawNothing(svg, width, "No value that can be drawn");
  const [steps, values] = [0, 1].map((at) => lines.flatMap(({ points }) => points.map((point) => point[at])));
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const x = linear(first, last, PAD.left, width - PAD.right);
  const { y, at } = vertical(values, isLog);
  const xs = ticks(first, last, Math.max(2, Math.floor(width / 90))).map((step) => [step, num(step)]);
  const step = first + (frame.cursor ?? 1) * (last - first);
  const now = lines.map(({ trainer, points }) => ({ trainer, point: nearest(points, step) }));
  const dots = frame.cursor == null ? [] : now;
  drawPlot(
    svg,
    width,
    { x, y, xs, ys: at.map((value) => [value, real(value)]) },
    lines.map(({ trainer, points }) => s("path", { class: `line ${lineClass(trainer)}`, d: pathOf(points, x, y) })),
    dots.map(({ trainer, point }) =>
      s("circle", { class: `dot ${lineClass(trainer)}`, cx: x(point[0]), cy: y(point[1]), r: 3.5 }),
    ),
  );
  read(chart, now);
}

function vertical(values, isLog) {
  let [lo, hi] = [Math.min(...values), Math.max(...values)];
  if (lo === hi) [lo, hi] = isLog ? [lo / 2, hi * 2] : [lo - Math.abs(lo || 1) / 2, hi + Math.abs(hi || 1) / 2];
  const [scale, marks] = isLog ? [logarithmic, logTicks] : [linear, ticks];
  return { y: scale(lo, hi, FLOOR, PAD.top), at: marks(lo, hi) };
}

function pathOf(points, x, y) {
  const path = points.map(([step, value]) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
  return `M${path}${points.length > 1 ? "" : "h0.1"}`;
}

function nearest(points, step) {
  return points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
}

function read({ frame, svg, name }, now) {
  const step = `step ${num(now[0].point[0])}`;
  const values = now
    .slice(0, MOST_NAMED)
    .map(({ trainer, point }) =>
      h("span", lineSwatch(trainer), now.length > 1 && `${trainer}: `, h("b", real(point[1]))),
    );
  fill(frame.readout, h("span", step), values, now.length > MOST_NAMED && `and ${now.length - MOST_NAMED} more`);
  if (frame.cursor != null) return;
  set(
    svg,
    "aria-label",
    `${name} at ${step}: ${now.map(({ trainer, point }) => `trainer ${trainer} ${real(point[1])}`).join(", ")}`,
  );
}
