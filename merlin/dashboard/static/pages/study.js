// A study: what all of its tabs share, and the tabs.

import { fill, h, set, show, write } from "../base/dom.js";
import { clock, duration, num, rate } from "../base/format.js";
import { place } from "../base/routes.js";
import { StudyFeed } from "../base/study_feed.js";
import { actionButtons } from "../parts/actions.js";
import { STATES, done, outcomeBar, reconciliation, stateChip } from "../parts/outcomes.js";
import { path, say, trouble, waiting } from "../parts/text.js";
import { dataTab } from "./data.js";
import { failuresTab } from "./failures.js";
import { overviewTab } from "./overview.js";
import { taskTab } from "./task.js";
import { tasksTab } from "./tasks.js";
import { trainingTab } from "./training.js";
import { workersTab } from "./workers.js";

const hasData = ({ data_sets, steps }) => data_sets.length > 0 || steps.some(({ kind }) => kind === "aggregate");

/** Of each tab: what makes it, where it is, its words, how many there are of it, and whether a study has it. */
const TABS = {
  overview: { make: overviewTab, at: place.study, words: "Overview" },
  tasks: { make: tasksTab, at: place.tasks, words: "Tasks" },
  failures: { make: failuresTab, at: place.failures, words: "Failures", num: (page) => page.num_failures },
  workers: { make: workersTab, at: place.studyWorkers, words: "Workers", num: (page) => page.workers.length },
  data: { make: dataTab, at: place.data, words: "Data", num: (page) => page.data_sets.length, has: hasData },
  training: {
    make: trainingTab,
    at: place.training,
    words: "Training",
    num: (page) => page.runs.length,
    has: (page) => page.runs.length > 0,
  },
};

export function studyPage(app, first) {
  const { id } = first;
  const [head, tabs, body] = [header(), tabList(id), h(".tab", waiting())];
  const node = h(".page", { "data-study": id }, head.node, tabs.node, body);
  const feed = new StudyFeed(id, app, (error) => fill(node, h("h1", id), trouble(error)));
  let [to, tab, leaving, state] = [first, null, null, ""];
  const open = () => {
    leaving?.abort();
    leaving = new AbortController();
    tab = (to.tab === "task" ? taskTab : TABS[to.tab].make)({ ...app, feed, signal: leaving.signal }, to);
    fill(body, tab.node);
  };
  const look = () => {
    if (!feed.page) return;
    const { page } = feed;
    head.update(page, app.session, to.tab);
    tabs.update(page, to.tab === "task" ? "tasks" : to.tab);
    app.title(`${STATES[page.state] ?? "?"} ${done(page.totals)}`, page.name);
    if (state && state !== page.state) say(`${page.name} is ${page.state}. ${page.state_reason}`);
    state = page.state;
  };
  feed.listen(look, app.signal);
  app.signal.addEventListener("abort", () => leaving.abort());
  open();
  return {
    node,
    takes: (other) => other.page === "study" && other.id === id,
    turn(other) {
      const isSame = other.tab === to.tab && tab.turn;
      to = other;
      look();
      if (isSame) tab.turn(other);
      else open();
    },
  };
}

function tabList(id) {
  const links = Object.entries(TABS).map(([tab, { at, words, ...more }]) => {
    const number = h("span.number");
    return { tab, number, node: h("a", { href: at(id) }, words, number), ...more };
  });
  const nav = h(
    "nav.tabs",
    { "aria-label": "Parts of the study" },
    links.map(({ node }) => node),
  );
  const update = (page, current) => {
    for (const { tab, number, node, num: numOf, has } of links) {
      const many = numOf?.(page) ?? 0;
      write(number, num(many));
      show(number, many > 0);
      show(node, tab === current || (has?.(page) ?? true));
      if (tab === current && !node.hasAttribute("aria-current")) nav.scrollTo({ left: node.offsetLeft - 60 });
      set(node, "aria-current", tab === current ? "page" : null);
      set(node, "class", tab === "failures" && many ? "has-failed" : null);
    }
  };
  return { node: nav, update };
}

function header() {
  const [name, about, reason, where] = [h("h1"), h("p"), h("p.reason"), h("span")];
  const [chip, actions, bar, sum, figures] = [
    stateChip(),
    actionButtons(),
    outcomeBar("thick"),
    reconciliation(),
    figureList(),
  ];
  const node = h(
    "header.study-head",
    h(".page-head", name, chip.node, h(".right", actions.node)),
    reason,
    h(".about", about, where),
    bar.node,
    h(".sums", sum.node, figures.node),
  );
  const update = (page, session, tab) => {
    write(name, page.name);
    write(about, page.description);
    if (where.textContent !== page.workspace) fill(where, path(page.workspace));
    write(reason, page.state_reason);
    show(reason, Boolean(page.state_reason));
    show(figures.node, tab === "overview");
    for (const part of [chip, figures]) part.update(page);
    for (const part of [bar, sum]) part.update(page.totals);
    actions.update(page, session);
  };
  return { node, update };
}

/** What stands in large letters: its words, and of a page its value and a note; no value, no figure. */
const FIGURES = {
  done: ({ totals }) => [done(totals)],
  left: leftOf,
  rate: (page) => [page.rate == null ? null : rate(page.rate)],
  elapsed: ({ started, elapsed_s, now }) => [
    started == null ? null : duration(elapsed_s),
    `since ${clock(started, { now })}`,
  ],
  "at work": atWork,
};

function figureList() {
  const parts = Object.entries(FIGURES).map(([words, of]) => {
    const [big, small] = [h("b"), h("span.small")];
    return { of, big, small, node: h("div", h("dt", words), h("dd", big, small)) };
  });
  const update = (page) => {
    for (const { of, big, small, node } of parts) {
      const [value, note] = of(page);
      show(node, value != null);
      write(big, value);
      write(small, note);
    }
  };
  return {
    node: h(
      "dl.figures",
      parts.map(({ node }) => node),
    ),
    update,
  };
}

/** "12 min" with "9 to 16 min, at 15:42". */
function leftOf({ eta, now, totals }) {
  if (!eta || !totals.missing) return [null];
  const [low, high] = [duration(eta.low_s), duration(eta.high_s)];
  const [value, unit, ...more] = low.split(" ");
  const first = !more.length && high.split(" ").length === 2 && high.endsWith(` ${unit}`) ? value : low;
  const notes = [low !== high && `${first} to ${high}`, `at ${clock(now + eta.mid_s, { now })}`];
  if (eta.without?.length) notes.push(`without ${eta.without.join(", ")}`);
  return [duration(eta.mid_s), notes.filter(Boolean).join(", ")];
}

function atWork({ num_slots, workers, totals, executor }) {
  if (!num_slots) return [null];
  const isLocal = executor === "local";
  const busy = isLocal ? totals.running : workers.reduce((sum, { running }) => sum + running.length, 0);
  return [`${num(busy)} of ${num(num_slots)}`, isLocal ? "processes of its command" : "slots"];
}
