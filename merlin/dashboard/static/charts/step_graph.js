// The graph of a study's steps, with what became of their tasks in each node.

import { fill, h, s, set, write } from "../base/dom.js";
import { brief, count, num, percent } from "../base/format.js";
import { ended, outcomeBarSvg, said } from "../parts/outcomes.js";
import { sized } from "./frame.js";
import { layered } from "./layout.js";

const HEIGHT = 66;
const [NARROWEST, WIDEST] = [148, 200]; // a graph that is still too wide scrolls
const ROW_GAP = 18;
const TALL_GAP = 34; // between layers that stand one below the other
const MARGIN = 2;
const ARROW = 7;
const LETTER = 7.8; // pixels, of a name
const MOST = 60; // steps that a picture can hold
const EDGES = { same: "sample by sample", all: "after all", block: "shard by shard" };

export const isDrawable = ({ steps }) => steps.length > 1 && steps.length <= MOST;

/** `link(step)` is where a node leads. `update(page, chosen)`. */
export function stepGraph(link) {
  const svg = s("svg.graph", { role: "group", "aria-label": "Graph of the steps" });
  const box = h(".graph-box", svg);
  const legend = h("p.legend");
  let [shape, nodes, last] = ["", new Map(), null];
  const update = (page, chosen) => {
    last = [page, chosen];
    const key = JSON.stringify([page.steps.map(({ step }) => step), page.edges, box.clientWidth]);
    if (key !== shape) {
      nodes = drawn(svg, page, box.clientWidth, link);
      fill(legend, kindsOf(page.edges));
    }
    shape = key;
    for (const line of page.steps) nodes.get(line.step).update(line, line.step === chosen);
  };
  new ResizeObserver(() => last && update(...last)).observe(box);
  return { node: h("div", box, legend), update };
}

function kindsOf(edges) {
  const kinds = Object.keys(EDGES).filter((kind) => edges.some((edge) => edge.kind === kind));
  const sample = (kind) =>
    s("svg", { width: 34, height: 10, viewBox: "0 0 34 10", "aria-hidden": "true" }, strokes(kind, "M1 5H33"));
  return kinds.map((kind) => [sample(kind), h("span", EDGES[kind])]);
}

/** The sizes of a graph in a box: from left to right, or from the top down where that is too narrow. Pure. */
export function sizes(numLayers, numRows, room) {
  const isTall = room > 0 && room < 560 && numLayers > 2;
  const gap = isTall ? TALL_GAP : Math.max(26, Math.min(58, room / numLayers / 5));
  const [across, between] = isTall ? [numRows, ROW_GAP] : [numLayers, gap];
  const width = Math.floor(Math.min(WIDEST, Math.max(NARROWEST, (room - 2 * MARGIN + between) / across - between)));
  const [along, beside] = isTall ? [HEIGHT, width] : [width, HEIGHT];
  const turned = (one, other) => (isTall ? { x: other, y: one } : { x: one, y: other });
  return {
    isTall,
    width,
    at: ({ layer, row }) => turned(MARGIN + layer * (along + gap), MARGIN + row * (beside + ROW_GAP)),
    extent: turned(2 * MARGIN + numLayers * (along + gap) - gap, 2 * MARGIN + numRows * (beside + ROW_GAP) - ROW_GAP),
  };
}

function drawn(svg, { steps, edges }, room, link) {
  const { places, numLayers, numRows } = layered(
    steps.map(({ step }) => step),
    edges,
  );
  const size = sizes(numLayers, numRows, room);
  sized(svg, size.extent.x, size.extent.y);
  const known = edges.filter(({ source, target }) => places.has(source) && places.has(target));
  const lines = known.map(({ source, target, kind }) =>
    edgeLines(kind, size.at(places.get(source)), size.at(places.get(target)), size),
  );
  const nodes = new Map(
    steps.map((line) => [line.step, stepNode(line, size.at(places.get(line.step)), size.width, link(line.step))]),
  );
  fill(
    svg,
    s("g", { "aria-hidden": "true" }, lines),
    [...nodes.values()].map(({ node }) => node),
  );
  return nodes;
}

function edgeLines(kind, from, to, { isTall, width }) {
  const [x1, y1, x2, y2] = isTall
    ? [from.x + width / 2, from.y + HEIGHT, to.x + width / 2, to.y - ARROW]
    : [from.x + width, from.y + HEIGHT / 2, to.x - ARROW, to.y + HEIGHT / 2];
  const [bx, by] = isTall ? [0, (y2 - y1) / 2] : [Math.max(14, (x2 - x1) / 2), 0];
  const curve = `M${x1} ${y1}C${x1 + bx} ${y1 + by} ${x2 - bx} ${y2 - by} ${x2} ${y2}`;
  const head = isTall ? `M${x2 - 4.5} ${y2}h9l-4.5 ${ARROW}Z` : `M${x2} ${y2 - 4.5}v9l${ARROW} -4.5Z`;
  return [strokes(kind, curve), s("path.edge-head", { d: head })];
}

function strokes(kind, d) {
  return [s(`path.edge-line.edge-${kind}`, { d }), kind === "all" && s("path.edge-core", { d })];
}

function stepNode({ step, kind }, { x, y }, width, href) {
  const bar = outcomeBarSvg(12, 32, width - 24, 8);
  const right = { x: width - 12, "text-anchor": "end" };
  const [done, note] = [s("text.node-count", { x: 12, y: 56 }), s("text", { ...right, y: 56 })];
  const hasRoom = step.length * LETTER + kind.length * 6.4 < width - 34;
  const node = s(
    "a",
    { href, transform: `translate(${x} ${y})` },
    s("title", step),
    s("rect.node-box", { width, height: HEIGHT, rx: 6 }),
    bar.node,
    done,
    note,
    s("text.node-name", { x: 12, y: 21 }, shortened(step, width - 22)),
    hasRoom && s("text.node-kind", { ...right, y: 21 }, kind),
  );
  const update = (line, isChosen) => {
    bar.update(line);
    write(done, progressOf(line));
    write(note, line.failed ? `✕ ${brief(line.failed)}` : line.running ? `▶ ${brief(line.running)}` : "");
    set(note, "class", line.failed ? "node-note is-failed" : "node-note");
    set(node, "class", `node${isChosen ? " is-chosen" : ""}${line.running ? " is-running" : ""}`);
    set(node, "aria-label", `${step}: ${said(line)}${line.running ? `, ${num(line.running)} running` : ""}`);
    set(node, "aria-current", isChosen ? "true" : null);
  };
  return { node, update };
}

function shortened(name, room) {
  const [letters, most] = [[...name], Math.floor(room / LETTER)];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : name;
}

function progressOf(line) {
  const done = ended(line);
  if (done === line.planned) return `${line.ok === done ? "✓ " : ""}${count(done, "task")}`;
  return line.planned < 1e4
    ? `${num(done)} of ${num(line.planned)}`
    : `${percent(done, line.planned)} of ${brief(line.planned)}`;
}
