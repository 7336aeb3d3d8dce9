// A tournament: a line for each trainer, coloured by the trainer in which its model began, and a link where it took
// over another's, or became the mean of both.

import { fill, s, set } from "../base/dom.js";
import { count } from "../base/format.js";
import { lineClass } from "./curves.js";
import { label, sized } from "./frame.js";
import { ticks } from "./scale.js";

const ROW = 26;
const LEFT = 84;

/** What the picture shows, in a sentence. Pure. */
export function storyOf({ rounds, origins }) {
  if (isAveraged(rounds)) return `${count(numOf(rounds), "round")}, in which all models became their mean.`;
  const taken = rounds.filter(({ kept }) => kept === "partner").length;
  const merged = rounds.filter(({ kept }) => kept === "merged").length;
  const means = merged ? `, and ${merged} merged with another` : "";
  const left = new Set(Object.values(origins).map((of) => of.at(-1)));
  const began = left.size === 1 ? `trainer ${[...left][0]}` : `${left.size} of ${Object.keys(origins).length} trainers`;
  return `${count(numOf(rounds), "round")}; ${count(taken, "model")} taken over${means}. All models now go back to ${began}.`;
}

const isAveraged = (rounds) => rounds.some(({ kept, partner }) => kept === "merged" && partner == null);
const numOf = (rounds) => Math.max(0, ...rounds.map(({ number }) => number));

/** Where a trainer's model comes from, as stretches of rounds with the same origin. */
function stretches(origins) {
  const found = [];
  origins.forEach((from, round) => {
    if (found.at(-1)?.from === from) found.at(-1).end = round + 1;
    else found.push({ from, begin: round, end: round + 1 });
  });
  return found;
}

/** Draws a training run `width` wide, or wider where it has many rounds. */
export function drawLineage(svg, { rounds, origins, best }, width) {
  const trainers = Object.keys(origins)
    .map(Number)
    .sort((one, other) => one - other);
  const num = Math.max(1, numOf(rounds));
  const least = isAveraged(rounds) ? 0 : 14; // all rounds of means are alike
  const pitch = Math.min(60, Math.max(least, (width - LEFT - 20) / (num + 1)));
  const [wide, high] = [LEFT + (num + 1) * pitch + 12, trainers.length * ROW + 26];
  const x = (round) => LEFT + round * pitch;
  const rows = new Map(trainers.map((trainer, row) => [trainer, 14 + row * ROW]));
  const life = (trainer, y) => [
    label(LEFT - 12, y + 4, `trainer ${trainer}${best?.trainer === trainer ? " ★" : ""}`, "end"),
    stretches(origins[trainer]).map(({ from, begin, end }) =>
      s("line", { class: `line ${lineClass(from)}`, x1: x(begin), x2: x(end), y1: y, y2: y }),
    ),
  ];
  const mark = ({ number, trainer, partner, kept }) => {
    const [cx, cy] = [x(number), rows.get(trainer)];
    if (kept === "local" || !rows.has(partner)) return s("circle.kept", { cx, cy, r: 2.5 });
    const its = lineClass(origins[trainer]?.[number] ?? partner);
    const link = s("line", { class: `link ${its}`, x1: cx - 9, x2: cx, y1: rows.get(partner), y2: cy });
    const diamond = { class: `dot ${its}`, points: `${cx - 5},${cy} ${cx},${cy - 5} ${cx + 5},${cy} ${cx},${cy + 5}` };
    return [link, kept === "merged" ? s("polygon", diamond) : s("circle", { class: `dot ${its}`, cx, cy, r: 4 })];
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
