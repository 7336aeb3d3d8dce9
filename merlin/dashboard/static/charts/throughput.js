// Tasks that ended, over time: ok below, failed above.

import { fill, h, s, set } from "../base/dom.js";
import { brief, clock, day, num, rate } from "../base/format.js";
import { swatch } from "../parts/outcomes.js";
import { FLOOR, Frame, PAD, drawNothing, drawPlot, plot } from "./frame.js";
import { linear, roundUp, ticks, timeTicks } from "./scale.js";

const LEAST_SHARE = 0.35; // of the last interval, before its rate means anything

/** The intervals of a step, or of all of them: {at, ok, failed, over_s, okRate, allRate}. Pure. */
export function points({ start, width_s, steps }, step, now) {
  const chosen = step ? [steps[step]].filter(Boolean) : Object.values(steps);
  const length = Math.max(0, ...chosen.map(({ ok }) => ok.length));
  const found = Array.from({ length }, (_, index) => {
    const [ok, failed] = ["ok", "failed"].map((kind) => chosen.reduce((sum, one) => sum + (one[kind][index] ?? 0), 0));
    const at = start + index * width_s;
    const over_s = Math.min(width_s, Math.max(now - at, LEAST_SHARE * width_s)); // the last one is still filling
    return { at, ok, failed, over_s, okRate: ok / over_s, allRate: (ok + failed) / over_s };
  });
  const last = found.at(-1);
  return last && now - last.at < LEAST_SHARE * width_s ? found.slice(0, -1) : found;
}

/** `update(throughput, step, now)`. */
export function throughputChart() {
  const { svg, shareAt } = plot();
  const chart = { svg, points: [], what: "" };
  const last = () => chart.points.length - 1;
  const to = (index) => Math.max(0, Math.min(last(), index));
  chart.frame = new Frame(svg, {
    label: "Throughput; arrow keys move along it",
    draw: (width) => draw(chart, width),
    at: (event) => Math.floor(shareAt(event) * chart.points.length),
    steps: {
      ArrowLeft: (cursor) => to((cursor ?? last() + 1) - 1),
      ArrowRight: (cursor) => to((cursor ?? last()) + 1),
      Home: () => 0,
      End: last,
    },
  });
  return {
    node: chart.frame.node,
    rows: () =>
      chart.points.map(({ at, ok, failed, allRate }) => [
        clock(at, { seconds: true }),
        num(ok),
        num(failed),
        rate(allRate),
      ]),
    update(throughput, step, now) {
      chart.points = points(throughput, step, now);
      chart.width_s = throughput.width_s;
      chart.what = `Throughput of ${step || "all steps"}`;
      chart.frame.draw();
    },
  };
}

function draw(chart, width) {
  const { points: of, width_s, svg } = chart;
  if (!of.length) return void (drawNothing(svg, width, "Nothing has ended yet"), fill(chart.frame.readout));
  const end = of.at(-1).at + width_s;
  const top = roundUp(Math.max(...of.map(({ allRate }) => allRate)));
  const x = linear(of[0].at, end, PAD.left, width - PAD.right);
  const y = linear(0, top, FLOOR, PAD.top);
  const { at, step } = timeTicks(of[0].at, end, Math.max(2, Math.floor(width / 110)));
  const words = (time) => (step < 86400 ? clock(time, { now: time, seconds: step < 60 }) : day(new Date(time * 1e3)));
  const axes = {
    x,
    y,
    xs: at.map((time) => [time, words(time)]),
    ys: ticks(0, top, 4).map((value) => [value, brief(value)]),
  };
  const area = (name, low, high) =>
    s(`path.area-${name}`, {
      d: outline(
        of,
        x,
        width_s,
        (one) => y(low(one)),
        (one) => y(high(one)),
      ),
    });
  drawPlot(
    svg,
    width,
    axes,
    area(
      "ok",
      () => 0,
      ({ okRate }) => okRate,
    ),
    of.some(({ failed }) => failed) &&
      area(
        "failed",
        ({ okRate }) => okRate,
        ({ allRate }) => allRate,
      ),
    cursor(chart, x),
  );
  read(chart);
}

/** A stepped area between two heights. */
function outline(of, x, width_s, low, high) {
  const at = (one, shift, height) => `${x(one.at + shift).toFixed(1)} ${height(one).toFixed(1)}`;
  const forth = of.map((one) => `${at(one, 0, high)}L${at(one, width_s, high)}`);
  const back = [...of].reverse().map((one) => `${at(one, width_s, low)}L${at(one, 0, low)}`);
  return `M${[...forth, ...back].join("L")}Z`;
}

function cursor({ frame, points: of, width_s }, x) {
  const one = of[frame.cursor];
  if (!one) return null;
  const wide = Math.max(1, x(one.at + width_s) - x(one.at));
  return s("rect.cursor", { x: x(one.at), y: PAD.top, width: wide, height: FLOOR - PAD.top });
}

/** The numbers under the cursor, else those of the whole time. */
function read({ frame, points: of, svg, what }) {
  const one = of[frame.cursor];
  const [ok, failed, over_s] = ["ok", "failed", "over_s"].map((name) =>
    (one ? [one] : of).reduce((sum, each) => sum + each[name], 0),
  );
  const when = one ? clock(one.at, { seconds: true }) : `on average since ${clock(of[0].at)}`;
  const pace = rate((ok + failed) / over_s);
  const outcome = (name, many) => h("span", swatch(name), `${num(many)} ${name}`);
  fill(frame.readout, h("b", pace), h("span", when), outcome("ok", ok), outcome("failed", failed));
  if (!one) set(svg, "aria-label", `${what}: ${pace} ${when}, ${num(ok)} ok, ${num(failed)} failed`);
}
