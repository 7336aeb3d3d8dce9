// A tournament: a line for each trainer, coloured by the trainer in which its model began, and a link where it took
// over another's.

import { fill, s, set } from "../base/dom.js";
import { count } from "../base/format.js";
import { lineClass } from "./curves.js";
import { label, sized } from "./frame.js";
import { ticks } from "./scale.js";

const ROW = 26;
const LEFT = 84;

/** What the picture shows, in a sentence. Pure. */
export function storyOf({ rounds, origins }) {
  const taken = rounds.filter(({ kept }) => kept === "partner").length;
  const left = new Set(Object.values(origins).map((of) => of.at(-1)));
  const began = left.size === 1 ? `trainer ${[...left][0]}` : `${left.size} of ${Object.keys(origins).length} trainers`;
  return `${count(numOf(rounds), "round")}; ${count(taken, "model")} taken over. All models now go back to ${began}.`;
}

const numOf = (rounds) => Math.max(0, ...rounds.map(({ number }) => number));

/** Draws a training run `width` wide, or wider where it has many rounds. */
export function drawLineage(svg, { rounds, origins, best }, width) {
  const trainers = Object.keys(origins)
    .map(Number)
    .sort((one, other) => one - other);
  const num = Math.max(1, numOf(rounds));
  const pitch = Math.min(60, Math.max(14, (width - LEFT - 20) / (num + 1)));
  const [wide, high] = [LEFT + (num + 1) * pitch + 12, trainers.length * ROW + 26];
  const x = (round) => LEFT + round * pitch;
  const rows = new Map(trainers.map((trainer, row) => [trainer, 14 + row * ROW]));
  const life = (trainer, y) => [
    label(LEFT - 12, y + 4, `trainer ${trainer}${best?.trainer === trainer ? " ★" : ""}`, "end"),
    origins[trainer].map((from, round) =>
      s("line", { class: `line ${lineClass(from)}`, x1: x(round), x2: x(round + 1), y1: y, y2: y }),
    ),
  ];
  const mark = ({ number, trainer, partner, kept }) => {
    const [cx, cy] = [x(number), rows.get(trainer)];
    if (kept !== "partner" || !rows.has(partner)) return s("circle.kept", { cx, cy, r: 2.5 });
    const its = lineClass(origins[trainer]?.[number] ?? partner);
    const link = s("line", { class: `link ${its}`, x1: cx - 9, x2: cx, y1: rows.get(partner), y2: cy });
    return [link, s("circle", { class: `dot ${its}`, cx, cy, r: 4 })];
  };
  const numbers = ticks(1, num, Math.max(1, Math.floor((wide - LEFT) / 50))).filter(Number.isInteger);
  sized(svg, wide, high);
  set(svg, "aria-label", storyOf({ rounds, origins }));
  fill(
    svg,
    [...rows].map(([trainer, y]) => life(trainer, y)),
    rounds.filter(({ trainer }) => rows.has(trainer)).map(mark),
    [[LEFT - 12, "round", "end"], ...numbers.map((round) => [x(round), round])].map(([at, words, anchor]) =>
      label(at, high - 6, words, anchor),
    ),
  );
}
