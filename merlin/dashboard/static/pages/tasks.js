// The tasks of a study, a page of them at a time.

import { fill, h, part, set, show } from "../base/dom.js";
import { count, duration, num, shortName, value } from "../base/format.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { OUTCOMES, outcomeChip } from "../parts/outcomes.js";
import { choice, section } from "../parts/section.js";
import { cell, link, number, table, text } from "../parts/table.js";
import { attempt, moment, nothing, waiting } from "../parts/text.js";

const LIMIT = 100;
const OUTCOME_OF = { FINISHED: "ok", DRY_RUN: "ok", FAILED: "failed", CANCELLED: "skipped" };

export function tasksTab(app, { id, asked: first }) {
  let asked = first;
  const look = (values) => app.go(place.tasks(id, { ...asked, after: null, sample: null, ...values }), true);
  const step = choice("Step", (chosen) => look({ step: chosen }));
  const outcome = choice("Outcome", (chosen) => look({ outcome: chosen }));
  const sample = h("input", {
    type: "search",
    placeholder: "Sample id",
    "aria-label": "Go to a sample",
    autocomplete: "off",
    "data-filter": "tasks",
  });
  const find = (event) => {
    event.preventDefault();
    look({ sample: sample.value.replace(/\D/g, "") });
  };
  const [note, list, start, next] = [
    h("div", waiting()),
    taskTable(id),
    h("a.button", "From the beginning"),
    h("a.button", "Next page"),
  ];
  const form = h("form", { on: { submit: find } }, sample);
  const box = section("Tasks", [step.node, outcome.node, form], note, list.node, h("p.pager", start, next));
  const choices = () => {
    const { page } = app.feed;
    step.update([["", "all steps"], ...(page?.steps ?? []).map((line) => [line.step])], asked.step ?? "");
    outcome.update([["", "any outcome"], ...OUTCOMES.map((name) => [name])], asked.outcome ?? "");
  };
  const turn = ({ asked: given }) => {
    if (given.after !== asked.after) box.node.scrollIntoView();
    asked = given;
    sample.value = asked.sample ?? "";
    choices();
    attempt(note, app, async () => {
      const { rows, next_after, total } = await ask(api.study(id, "tasks", { ...given, limit: LIMIT }), app);
      if (asked !== given) return; // the reader is elsewhere by now
      list.update(rows);
      fill(note, !rows.length && nothing("No task is like this."));
      box.say(asked.sample ? "" : count(total, "task"));
      show(list.node, rows.length > 0);
      show(start, Number(asked.after) > 0);
      show(next, next_after != null && !asked.sample);
      set(start, "href", place.tasks(id, { ...asked, after: null }));
      set(next, "href", place.tasks(id, { ...asked, after: next_after }));
    });
  };
  for (const node of [list.node, start, next]) show(node, false);
  app.feed.listen(choices, app.signal);
  turn({ asked });
  return { node: h(".stack", box.node), turn };
}

function taskTable(id) {
  const parametersOf = ({ parameters }) =>
    Object.entries(parameters)
      .map(([name, one]) => `${name} ${value(one)}`)
      .join(", ");
  const ifRun = (of) => (row) => (row.started == null ? null : of(row));
  return table("Tasks", ({ instance, task }) => `${instance}/${task}`, [
    cell(
      "Task",
      link((row) => [place.task(id, row.instance, row.task), nameOf(row)]),
      "name",
    ),
    cell(
      "Outcome",
      part("span", {}, (node, { status }) => fill(node, outcomeChip(OUTCOME_OF[status] ?? "missing"))),
    ),
    text("Parameters", parametersOf, "wide"),
    number(
      "Code",
      ifRun(({ exit_code }) => exit_code),
      String,
    ),
    number(
      "Took",
      ifRun(({ seconds }) => seconds),
      duration,
    ),
    cell(
      "Began",
      part("time", {}, (node, { started }) => moment(started, { seconds: true }, node)),
      "n",
    ),
    number(
      "Runs",
      ifRun(({ restarts, attempt: tries }) => (restarts + tries > 1 ? restarts + tries : null)),
      num,
      "",
      "Where more than one",
    ),
    text("Worker", ({ worker }) => shortName(worker), "wide"),
    text("Host", "host", "wide"),
  ]);
}

const nameOf = ({ step, task, sample_id }) =>
  sample_id == null ? `${step} ${num(task)}` : `${step} · sample ${num(sample_id)}`;
