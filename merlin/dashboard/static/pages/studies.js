// All studies, newest first.

import { fill, h, part, set, show, write } from "../base/dom.js";
import { bytes, clock, count, epochOf, num, rate } from "../base/format.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { Stream } from "../base/stream.js";
import { done, outcomeBar, stateChip } from "../parts/outcomes.js";
import { button } from "../parts/section.js";
import { cell, link, number, table } from "../parts/table.js";
import { copyable, nothing, trouble, waiting } from "../parts/text.js";

const PAGE = 100; // rows at first, and with each "more"

export function studiesPage({ signal, live, title, go }, { asked }) {
  title("Studies");
  let [all, roots, problems, most] = [null, [], [], PAGE];
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by name, state or place",
    "aria-label": "Filter the studies",
    autocomplete: "off",
    spellcheck: "false",
    "data-filter": "studies",
  });
  filter.value = asked.q ?? "";
  const [summary, notes, body, list] = [
    h("p.aside", { role: "status" }),
    h(".stack"),
    h(".card.flush", waiting()),
    studyTable(),
  ];
  const more = button("", () => draw((most += PAGE)));
  const draw = () => {
    if (!all) return;
    const found = matching(all, filter.value);
    const running = found.filter(({ state }) => state === "running").length;
    write(summary, `${count(found.length, "study", "studies")}${running ? `, ${num(running)} running` : ""}`);
    list.update(found.slice(0, most));
    if (!found.length) fill(body, why(all, roots));
    else if (!list.node.isConnected) fill(body, list.node);
    show(more, found.length > most);
    fill(
      notes,
      problems.map((message) => trouble({ message })),
    );
    write(more, `Show more of ${num(found.length)}`);
  };
  filter.addEventListener("input", () => {
    most = PAGE;
    const query = filter.value ? `?${new URLSearchParams({ q: filter.value })}` : "";
    history.replaceState(null, "", new URL(query, document.baseURI));
    draw();
  });
  filter.addEventListener("keydown", ({ key }) => {
    const first = body.querySelector("tbody a");
    if (key === "Enter" && first) go(first.getAttribute("href"));
  });
  const take = (found) => {
    [all, roots, problems] = [found.studies, found.roots, found.problems];
    draw();
  };
  show(more, false);
  ask(api.studies(), { signal }).then(take, (error) => signal.aborted || fill(body, trouble(error)));
  live.attach(new Stream(api.studiesStream(), { studies: take }, { signal, onState: live.onState }));
  return { node: h(".page", h(".page-head", h("h1", "Studies"), summary, h(".right", filter)), notes, body, more) };
}

/** The studies in which every word occurs somewhere. Pure. */
function matching(studies, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return studies.filter(({ name, state, workspace, when }) => {
    const text = `${name} ${state} ${workspace} ${when}`.toLowerCase();
    return wanted.every((word) => text.includes(word));
  });
}

function why(all, roots) {
  if (all.length) return nothing("No study matches the filter.");
  const where = roots.length ? ` in ${roots.join(", ")}` : "";
  return [
    nothing(`There is no study yet${where}. It appears here as soon as it begins:`),
    copyable("merlin run SPEC.yaml"),
  ];
}

function studyTable() {
  return table("Studies", "id", [
    cell("Study", nameCell, "name"),
    cell("State", stateChip),
    cell("Outcomes", barCell, "bar-cell"),
    number("Done", (row) => (row.planned ? row : null), done),
    number("Tasks", ({ planned }) => planned || null),
    cell(
      "Failed",
      link((row) => [place.failures(row.id), row.failed ? `✕ ${num(row.failed)}` : ""], "is-failed"),
      "n",
    ),
    number("Rate", "rate", rate, "wide"),
    cell("Began", whenCell, "n"),
    number("Size", "size_bytes", bytes, "wide"),
  ]);
}

function nameCell() {
  const name = link((row) => [place.study(row.id), row.name])();
  const where = h("span.under");
  const update = (row) => {
    name.update(row);
    write(where, row.problem || row.workspace);
    set(where, "class", row.problem ? "under is-problem" : "under");
  };
  return { node: h("div", name.node, where), update };
}

function barCell() {
  const bar = outcomeBar();
  const update = (row) => {
    show(bar.node, row.planned > 0);
    bar.update(row);
  };
  return { node: bar.node, update };
}

const whenCell = part("span", {}, (node, { when }) => {
  write(node, epochOf(when) == null ? when : clock(epochOf(when)));
  set(node, "title", `${when}, by the clock of the machine that it began on`);
});
