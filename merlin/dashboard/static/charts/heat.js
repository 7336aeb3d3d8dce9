// What became of ranges of tasks, a cell for each range, in reading order. In every cell failures are at the top.

import { fill, h, set } from "../base/dom.js";
import { count, num, percent } from "../base/format.js";
import { OUTCOMES } from "../parts/outcomes.js";
import { Frame } from "./frame.js";

const GAP = 2;
const [LEAST_PITCH, LARGEST_PITCH] = [11, 22];
const LEAST_SHARE = 0.22; // of a cell's height, so that one failure among thousands can be seen

/** A cell of the answer as an object. */
function cellOf([lo, hi, ok, failed, skipped, missing]) {
  return { lo, hi, ok, failed, skipped, missing, planned: hi - lo };
}

/** How a cell is painted, in order: [outcome, from, to] of its height, with 0 at the bottom. Pure. */
export function layers({ planned, ok, failed, skipped }) {
  const share = (many) => (many ? Math.max(many / planned, LEAST_SHARE) : 0);
  const [top, middle] = [Math.min(share(failed), 1), share(skipped)];
  const low = Math.min(ok / planned, 1 - top);
  const parts = [
    ["ok", 0, low],
    ["skipped", low - Math.max(0, low + middle - 1 + top), Math.min(low + middle, 1 - top)],
    ["failed", 1 - top, 1],
  ];
  return parts.filter(([, from, to]) => to > from);
}

/** `go(lo)` is called with the first task of a cell that was chosen. `update(heat)`. */
export function heatMap(go) {
  const map = { canvas: h("canvas.heat", { "aria-hidden": "true" }), cells: [], grid: { columns: 1, pitch: 1 } };
  const move = (by) => (cursor) => {
    const next = cursor == null ? 0 : cursor + by();
    return next >= 0 && next < map.cells.length ? next : cursor;
  };
  map.frame = new Frame(map.canvas, {
    label: "Outcomes",
    draw: (width) => map.heat && draw(map, width),
    at: (event) => cellAt(map, event),
    enter: (index) => index != null && go(map.cells[index].lo),
    steps: {
      ArrowLeft: move(() => -1),
      ArrowRight: move(() => 1),
      ArrowUp: move(() => -map.grid.columns),
      ArrowDown: move(() => map.grid.columns),
    },
  });
  return {
    node: map.frame.node,
    rows: () => map.cells.map((cell) => [rangeOf(map, cell), ...OUTCOMES.map((name) => num(cell[name]))]),
    update(heat) {
      Object.assign(map, { heat, cells: heat.cells.map(cellOf) });
      const by = heat.first_sample == null ? "task" : "sample";
      set(map.frame.box, "aria-label", `Outcomes of ${heat.step} by ${by}; arrow keys move, Enter lists the tasks`);
      map.frame.draw();
    },
  };
}

function cellAt({ canvas, grid, cells }, { clientX, clientY }) {
  const { left, top } = canvas.getBoundingClientRect();
  const [column, row] = [clientX - left, clientY - top].map((at) => Math.floor(at / grid.pitch));
  const index = row * grid.columns + column;
  return column >= 0 && column < grid.columns && index in cells ? index : null;
}

/** Cells as large as it goes when all stand in a box four times as wide as high. */
function gridOf(many, width) {
  const pitch = Math.round(
    Math.min(LARGEST_PITCH, Math.max(LEAST_PITCH, Math.sqrt((width * width) / 4 / Math.max(1, many)))),
  );
  const columns = Math.max(1, Math.min(many, Math.floor((width + GAP) / pitch)));
  return { pitch, columns, rows: Math.ceil(many / columns) };
}

function draw(map, width) {
  const { canvas, cells, frame } = map;
  map.grid = gridOf(cells.length, width);
  const { pitch, columns, rows } = map.grid;
  const scale = window.devicePixelRatio || 1;
  for (const [name, size] of [
    ["width", columns * pitch],
    ["height", rows * pitch],
  ]) {
    canvas[name] = Math.round(size * scale);
    canvas.style[name] = `${size}px`;
  }
  const styles = getComputedStyle(canvas);
  const colour = (name) => styles.getPropertyValue(`--${name}`);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const [side, corner] = [pitch - GAP, (index) => [(index % columns) * pitch, Math.floor(index / columns) * pitch]];
  cells.forEach((cell, index) => {
    const [x, y] = corner(index);
    for (const [name, from, to] of [["missing", 0, 1], ...layers(cell)]) {
      context.fillStyle = colour(name);
      context.fillRect(x, y + (1 - to) * side, side, (to - from) * side);
    }
  });
  if (frame.cursor in cells) {
    const [x, y] = corner(frame.cursor);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(x, y, side, side);
  }
  read(map);
}

/** "samples 1 000 to 1 999", or tasks, where they are no samples of one instance. */
function rangeOf({ heat: { first_sample } }, { lo, hi }) {
  const noun = first_sample == null ? "task" : "sample";
  const [first, last] = [lo, hi - 1].map((at) => num(at + (first_sample ?? 0)));
  return first === last ? `${noun} ${first}` : `${noun}s ${first} to ${last}`;
}

function read(map) {
  const { heat, cells, frame } = map;
  const cell = cells[frame.cursor];
  if (cell) {
    const parts = OUTCOMES.filter((name) => cell[name]).map((name) => h("span", `${num(cell[name])} ${name}`));
    const share = cell.failed && cell.planned > 1 ? h("span", `${percent(cell.failed, cell.planned)} failed`) : null;
    return fill(frame.readout, h("b", rangeOf(map, cell)), parts, share);
  }
  const each = cells[0]?.planned === 1 ? "a cell is a task" : `a cell is about ${num(cells[0]?.planned)} tasks`;
  return fill(frame.readout, cells.length ? `${count(heat.num_tasks, "task")}; ${each}` : "There are no tasks yet.");
}
