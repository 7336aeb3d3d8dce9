// Training runs: how far the trainers are, their losses, and which models won the rounds.

import { fill, h, keyed, part, s, set, show } from "../base/dom.js";
import { count, duration, epochOf, num, real } from "../base/format.js";
import { Refresher } from "../base/refresh.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { curveChart, lineSwatch } from "../charts/curves.js";
import { drawLineage, storyOf } from "../charts/lineage.js";
import { section, tick } from "../parts/section.js";
import { asTable, cell, number, scrolling, table, text } from "../parts/table.js";
import { attempt, facts, moment, nothing, path, waiting } from "../parts/text.js";

const EVERY_MS = 5000;

export function trainingTab(app, { id, key: first }) {
  const [note, picks] = [h("div", waiting()), h("nav.picks", { "aria-label": "Training runs" })];
  const parts = runParts();
  const body = h(".stack", parts.nodes);
  const node = h(".stack", picks, note, body);
  let [key, run, version] = [first, null, 0];
  const shownKey = () => key ?? app.feed.page?.runs[0]?.key;
  const pick = ({ key: its, name }) => {
    const link = h("a", { href: place.training(id, its) }, name);
    return { node: link, update: () => set(link, "aria-current", its === shownKey() ? "page" : null) };
  };
  const load = () =>
    attempt(note, app, async () => {
      if (shownKey() == null) return fill(note, nothing("No training run lies in this study's workspace."));
      run = await ask(api.training(id, shownKey()), app);
      parts.update(run);
      return show(body, true);
    });
  const refresher = new Refresher(node, load, { ...app, restMs: EVERY_MS });
  const look = (isUrgent = false) => {
    const runs = app.feed.page?.runs ?? [];
    show(picks, runs.length > 1);
    keyed(picks, runs, (one) => one.key, pick);
    if (app.feed.page) refresher.want(`${shownKey()} ${version}`, isUrgent);
  };
  const timer = setInterval(() => {
    if (run?.state === "running") version += 1; // also after the study has ended
    look();
  }, EVERY_MS);
  app.signal.addEventListener("abort", () => clearInterval(timer));
  app.feed.listen(() => look(), app.signal);
  show(body, false);
  const turn = ({ key: other }) => {
    key = other;
    look(true);
  };
  return { node, turn };
}

function runParts() {
  const about = section("Run", []);
  const list = trainerTable();
  const trainers = section("Trainers", [], list.node);
  const [validation, losses, rounds] = [curveSection("Validation"), curveSection("Losses"), roundSection()];
  const update = (run) => {
    fill(about.body, aboutOf(run));
    about.say(run.state);
    list.update(run.trainers);
    trainers.say(count(run.trainers.length, "trainer"));
    validation.update(run.validation);
    losses.update(run.losses);
    rounds.update(run);
  };
  return { nodes: [about.node, validation.node, losses.node, rounds.node, trainers.node], update };
}

function aboutOf({ name, data_path, num_parameters, best, created, ...run }) {
  return facts(
    ["Name", name],
    ["Best", best && `${best.metric} ${real(best.value)}: trainer ${best.trainer} at step ${num(best.step)}`],
    ["Parameters", num_parameters ? num(num_parameters) : null],
    ["Began", epochOf(created) == null ? created : moment(epochOf(created))],
    ["Data", path(data_path)],
    ["Place", path(run.path)],
  );
}

function trainerTable() {
  const name = part("span", {}, (node, { trainer }) => fill(node, lineSwatch(trainer), `trainer ${trainer}`));
  return table("Trainers", "trainer", [
    cell("Trainer", name, "name"),
    text("State", "state"),
    number("Step", "step"),
    number("Samples per second", "samples_per_s"),
    number("Trained for", "train_s", duration),
  ]);
}

function roundSection() {
  const [svg, story] = [s("svg.chart.lineage", { role: "img" }), h("p.readout")];
  const frame = scrolling("Picture of the tournament", svg);
  let last = null;
  const rows = () =>
    last.rounds.map(({ number: round, trainer, partner, kept }) => [
      `round ${round}, trainer ${trainer}`,
      partner ?? "",
      kept,
    ]);
  const { node } = section("Tournament", [], story, frame, asTable(["Round", "Partner", "Kept"], rows));
  const draw = () => last?.rounds.length && drawLineage(svg, last, frame.clientWidth);
  new ResizeObserver(draw).observe(frame);
  const update = (run) => {
    last = run;
    show(node, run.rounds.length > 0);
    fill(story, storyOf(run));
    draw();
  };
  return { node, update };
}

function curveSection(title) {
  const grid = h(".curves");
  let [last, isLog] = [{}, false];
  const draw = () => {
    keyed(
      grid,
      Object.entries(last),
      ([name]) => name,
      ([name]) => {
        const chart = curveChart(name);
        return { node: chart.node, update: ([, curves]) => chart.update(curves, isLog) };
      },
    );
  };
  const log = tick("logarithmic", false, (isOn) => {
    isLog = isOn;
    draw();
  });
  const { node } = section(title, [log], grid);
  const update = (curves) => {
    last = curves;
    show(node, Object.keys(last).length > 0);
    draw();
  };
  return { node, update };
}
