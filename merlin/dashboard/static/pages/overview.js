// The first tab of a study: what keeps it, its steps, how fast it goes, where it fails.

import { h, keyed, set, show, write } from "../base/dom.js";
import { count, duration, num, rate } from "../base/format.js";
import { Refresher } from "../base/refresh.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { heatMap } from "../charts/heat.js";
import { isDrawable, stepGraph } from "../charts/step_graph.js";
import { throughputChart } from "../charts/throughput.js";
import { outcomeBar } from "../parts/outcomes.js";
import { choice, section } from "../parts/section.js";
import { asTable, cell, link, number, table, text } from "../parts/table.js";
import { attempt, copyable } from "../parts/text.js";
import { failureGroups } from "./failures.js";

const NUM_GROUPS = 3;

export function overviewTab(app, first) {
  const { id } = first;
  const choose = (step) => app.go(place.study(id, { step }), true);
  const [why, graph, pace, heat, failed] = [
    obstacles(),
    steps(id),
    throughput(choose),
    outcomes(app, id, choose),
    failures(app, id),
  ];
  let { step: wanted } = first.asked;
  const draw = () => {
    const { page, throughput: found } = app.feed;
    const step = page?.steps.some((line) => line.step === wanted) ? wanted : "";
    for (const part of page ? [why, graph, pace, heat, failed] : []) part.update(page, step, found);
  };
  app.feed.listen(draw, app.signal);
  const turn = ({ asked }) => {
    wanted = asked.step;
    draw();
  };
  return { node: h(".stack", why.node, graph.node, h(".columns", pace.node, heat.node), failed.node), turn };
}

function obstacles() {
  const [title, list, notes] = [h("h2", { id: "why" }), h("ul.obstacles"), h("ul.obstacles")];
  const node = h("section", { "aria-labelledby": "why" }, title, list, notes);
  const update = (page) => {
    const found = page.totals.missing ? page.obstacles : [];
    const isGrave = found.some(({ is_normal }) => !is_normal);
    const said = [...page.notes, ...page.damage.map((place) => `The ledger is damaged: ${place}`)];
    show(node, found.length + said.length > 0);
    set(node, "class", isGrave ? "card why-not" : "card");
    write(title, found.length ? `Why nothing ${page.totals.running ? "more " : ""}runs` : "Notes");
    keyed(
      list,
      found,
      ({ what, remedy }) => what + remedy,
      ({ what, remedy }) => ({ node: h("li", h("p", what), h(".remedies", remedies(remedy))) }),
    );
    keyed(
      notes,
      said,
      (note) => note,
      (note) => ({ node: h("li", note) }),
    );
  };
  return { node, update };
}

/** "merlin a, or here: merlin b" as its pieces: those that begin with `merlin` are commands. Pure. */
export const piecesOf = (remedy) => remedy.split(/(?:; |, or (?:here: )?)(?=merlin )/).filter(Boolean);

const remedies = (remedy) => piecesOf(remedy).map((one) => (one.startsWith("merlin ") ? copyable(one) : h("p", one)));

function steps(id) {
  const graph = stepGraph((step) => place.study(id, { step }));
  const list = stepTable(id);
  const box = section("Steps", [], graph.node, list.node);
  const update = (page, step) => {
    show(graph.node, isDrawable(page));
    if (isDrawable(page)) graph.update(page, step);
    list.update(page.steps);
    const words = [count(page.steps.length, "step"), page.samples && count(page.samples.num, "sample")];
    if (page.extensions.length) words.push(`extended ${count(page.extensions.length, "time")}`);
    box.say(words.filter(Boolean).join(", "));
  };
  return { node: box.node, update };
}

function stepTable(id) {
  const some = (head, name, format, kind, title) => number(head, (line) => line[name] || null, format, kind, title);
  const toFailed = ({ step, failed }) => [
    place.tasks(id, { step, outcome: "failed" }),
    failed ? `✕ ${num(failed)}` : "",
  ];
  return table("Steps, and what became of their tasks", "step", [
    cell(
      "Step",
      link(({ step }) => [place.tasks(id, { step }), step]),
      "name",
    ),
    cell("Outcomes", () => outcomeBar(), "bar-cell"),
    number("Tasks", "planned"),
    some("Ok", "ok"),
    cell("Failed", link(toFailed, "is-failed"), "n"),
    some("Skipped", "skipped"),
    some("Missing", "missing"),
    some("Running", "running"),
    number("Rate", "rate", rate),
    number("Left", ({ eta_s, missing }) => (missing ? eta_s : null), duration),
    some("Worked", "busy_s", duration, "wide", "Time that workers spent on it"),
    text("Queue", "queue", "wide"),
  ]);
}

function throughput(choose) {
  const chart = throughputChart();
  const pick = choice("Step of the throughput", choose);
  const table = asTable(["Time", "Ok", "Failed", "Rate"], chart.rows);
  const update = (page, step, found) => {
    pick.update([["", "all steps"], ...page.steps.map((line) => [line.step])], step);
    chart.update(found ?? { start: page.now, width_s: 1, steps: {} }, step, page.now);
  };
  return { node: section("Throughput", [pick.node], chart.node, table).node, update };
}

/** The heat map is of one step: the chosen one, else the largest, of those with failures if such a one is large, too. */
function heatStep({ steps }, step) {
  const weight = ({ planned, failed }) => planned * (failed ? 50 : 1);
  return step || steps.reduce((best, line) => (weight(line) > weight(best) ? line : best), steps[0])?.step;
}

function outcomes(app, id, choose) {
  let shown;
  const map = heatMap((after) => app.go(place.tasks(id, { step: shown, after })));
  const pick = choice("Step of the heat map", choose);
  const note = h("div");
  const table = asTable(["Range", "Ok", "Failed", "Skipped", "Missing"], map.rows);
  const { node } = section("Outcomes", [pick.node], note, map.node, table);
  const load = () => attempt(note, app, async () => map.update(await ask(api.study(id, "heat", { step: shown }), app)));
  const refresher = new Refresher(node, load, app);
  const update = (page, step) => {
    const isOther = shown !== undefined && shown !== heatStep(page, step);
    shown = heatStep(page, step);
    const line = page.steps.find((one) => one.step === shown);
    pick.update(
      page.steps.map((one) => [one.step]),
      shown,
    );
    if (line) refresher.want([shown, line.ok, line.failed, line.skipped, line.missing].join(), isOther);
  };
  return { node, update };
}

function failures(app, id) {
  const groups = failureGroups(app, id, NUM_GROUPS);
  const all = h("a", { href: place.failures(id) });
  const { node } = section("Failures", [all], groups.node);
  const update = (page) => {
    show(node, page.num_failures > 0);
    write(all, `All ${count(page.num_failures, "failure")}`);
    groups.update(page);
  };
  return { node, update };
}
