// One task: what it was given, how it ended, and what it left.

import { h } from "../base/dom.js";
import { bytes, count, duration, num, shortName, value } from "../base/format.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { fileView } from "../parts/files.js";
import { outcomeChip } from "../parts/outcomes.js";
import { card } from "../parts/section.js";
import { attempt, facts, log, moment, nothing, path, waiting } from "../parts/text.js";

export function taskTab(app, { id, instance, task }) {
  const note = h("div", waiting());
  const node = h(".stack", note);
  attempt(note, app, async () => {
    const found = await ask(api.study(id, "task", { instance, task }), app);
    node.append(
      ...[heading(found, id), h(".columns", summary(found), given(found, id)), ...files(found, app, id)].filter(
        Boolean,
      ),
    );
  });
  return { node };
}

function heading({ step, instance, task, sample_id, outcome, previous, next }, id) {
  const words = sample_id == null ? `task ${num(task)}` : `sample ${num(sample_id)}`;
  const to = (other, label, attributes) =>
    other != null && h("a.button", { href: place.task(id, instance, other), ...attributes }, label);
  return h(
    ".page-head.task-head",
    h("h2", `${step} · ${words}`),
    outcomeChip(outcome),
    h(
      "nav.right",
      { "aria-label": "Neighbouring tasks" },
      to(previous, "← before", { "data-previous": "", title: "The task before ([)" }),
      to(next, "next →", { "data-next": "", title: "The next task (])" }),
    ),
  );
}

function summary(task) {
  const hasRun = task.started != null;
  const tries = [
    task.attempt > 1 && `attempt ${task.attempt}`,
    task.tries && `${count(task.tries, "retry", "retries")} of its own`,
  ];
  return card(
    "How it went",
    facts(
      ["Cause", task.cause],
      ["Exit code", hasRun ? String(task.exit_code) : null],
      ["Began", hasRun ? moment(task.started, { seconds: true }) : null],
      ["Took", hasRun ? duration(task.seconds) : null],
      ["Tries", tries.filter(Boolean).join(", ")],
      ["Worker", [shortName(task.worker), task.host].filter(Boolean).join(" on ")],
      ["Instance", task.instance],
      ["Directory", path(task.directory)],
    ),
    task.tail && log("End of its standard error", task.tail),
  );
}

function given({ inputs, related }, id) {
  const values = Object.entries(inputs).map(([name, one]) => [name, h("code", value(one))]);
  const others = related.map((one) => [
    h("a", { href: place.task(id, one.instance, one.task) }, one.instance),
    outcomeChip(one.outcome),
  ]);
  return h(
    ".stack",
    card("Inputs", values.length ? facts(...values) : nothing("It has none.")),
    others.length > 0 &&
      card(
        "The same sample elsewhere",
        h(
          "ul.related",
          others.map((parts) => h("li", parts)),
        ),
      ),
  );
}

function files(task, app, id) {
  const [images, others] = [true, false].map((isImage) =>
    task.files.filter(({ kind }) => (kind === "image") === isImage),
  );
  const views = others.map((file) => fileView(file, task, id, app));
  const urgent = others.findIndex(({ name, size }) => name.endsWith(".err") && size > 0);
  if (task.outcome === "failed" && urgent >= 0) views[urgent].open = true; // what one looks at first
  const left = task.num_files_left_out;
  return [
    images.length > 0 &&
      card(
        "Images",
        h(
          ".images",
          images.map((file) => picture(file, task, id)),
        ),
      ),
    others.length > 0 && card("Files", views, left > 0 && nothing(`and ${count(left, "more file")}`)),
  ];
}

function picture({ name, size }, { instance, task }, id) {
  const image = h("img", {
    src: api.study(id, "raw", { instance, task, name }),
    alt: `Image ${name}`,
    loading: "lazy",
  });
  return h("figure", image, h("figcaption", `${name}, ${bytes(size)}`));
}
