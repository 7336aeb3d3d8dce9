// Who works on a study: workers, the allocations that they live in, and the queues.

import { h, keyed, part, set, show, write } from "../base/dom.js";
import { count, duration, num, shortName } from "../base/format.js";
import { section } from "../parts/section.js";
import { cell, number, table, text } from "../parts/table.js";
import { moment, nothing } from "../parts/text.js";

const SHORT_S = 300; // of walltime

export function workersTab(app) {
  const sections = workerSections();
  app.feed.listen(({ page }) => sections.update(page), app.signal);
  return { node: h(".stack", sections.nodes) };
}

/** `update({workers, queues, jobs, step_jobs, …})`; what there is none of is not shown. */
export function workerSections() {
  const none = nothing("");
  const lists = [
    ["Workers", "workers", workerTable()],
    ["Allocations", "jobs", jobTable()],
    ["Batch jobs of steps", "step_jobs", stepJobTable()],
    ["Queues", "queues", queueTable()],
  ].map(([title, name, list]) => ({ name, list, box: section(title, [], name === "workers" && none, list.node) }));
  const update = (page) => {
    const now = page.now ?? Date.now() / 1e3;
    const isLocal = page.executor === "local"; // what its processes run, the ledger says afterwards
    for (const { name, list, box } of lists) {
      const rows = page[name] ?? [];
      list.update(rows.map((row) => ({ ...row, now, isLocal, other: page.id ? "another study's " : "" })));
      show(list.node, rows.length > 0);
      show(box.node, rows.length > 0 || name === "workers");
    }
    show(none, isLocal || !page.workers.length);
    write(none, noneOf(page));
    lists[0].box.say(isLocal || !page.workers.length ? "" : slotsOf(page.workers));
  };
  return { nodes: lists.map(({ box }) => box.node), update };
}

function noneOf({ executor, num_slots, totals, note }) {
  if (note || executor !== "local" || !num_slots) return note || "No worker is alive.";
  const own = count(num_slots, "process", "processes");
  return `The command that runs the study has ${own} of its own; about ${num(totals.running)} are at work.`;
}

function slotsOf(workers) {
  const sum = (of) => workers.reduce((all, worker) => all + of(worker), 0);
  return `${num(sum(({ running }) => running.length))} of ${count(
    sum(({ slots }) => slots),
    "slot",
  )} busy`;
}

function workerTable() {
  const left = part("span", {}, (node, { ends, now }) => {
    write(node, ends == null ? "" : duration(Math.max(0, ends - now)));
    set(node, "class", ends != null && ends - now < SHORT_S ? "is-short" : null);
  });
  return table("Workers", "name", [
    cell("Worker", workerName, "name"),
    cell("Busy", slotMeter),
    cell("Runs", runningCell),
    text("Queues", ({ queues }) => queues.join(", "), "wide"),
    cell(
      "Began",
      part("time", {}, (node, { started }) => moment(started, {}, node)),
      "n",
    ),
    cell("Time left", left, "n"),
  ]);
}

function workerName() {
  const [name, where] = [h("span"), h("span.under")];
  const update = (worker) => {
    const { host, node, job, cores, gpus } = worker;
    const place = node && node !== host ? `${host} (${node})` : host;
    const has = [cores && count(cores, "core"), gpus.length && count(gpus.length, "GPU"), job && `job ${job}`];
    write(name, shortName(worker.name));
    write(where, [place, ...has, worker.is_stopping && "is stopping"].filter(Boolean).join(" · "));
  };
  return { node: h("div", name, where), update };
}

function slotMeter() {
  const [meter, words] = [h("meter", { min: 0 }), h("span.small")];
  const node = h("span.metered", meter, words);
  const update = ({ name, slots, running, isLocal }) => {
    show(node, !isLocal);
    set(meter, "max", slots || 1);
    set(meter, "value", running.length);
    set(meter, "aria-label", `Busy slots of ${name}`);
    write(words, `${running.length}/${slots}`);
  };
  return { node, update };
}

/** A line for each step that it works on: how many tasks it holds, and since when. */
function runningCell() {
  const list = h("ul");
  const line = part("li", {}, (node, [, words]) => write(node, words));
  const update = ({ running, now, other }) => {
    const steps = new Map();
    for (const chunk of running) {
      const step = chunk.step || other + chunk.instance;
      steps.set(step, [...(steps.get(step) ?? []), chunk]);
    }
    const lines = [...steps].map(([step, chunks]) => [step, chunkWords(step, chunks, now)]);
    keyed(list, lines, ([step]) => step, line);
  };
  return { node: list, update };
}

function chunkWords(step, chunks, now) {
  const tasks = chunks.reduce((sum, { lo, hi }) => sum + hi - lo, 0);
  const longest = Math.max(0, ...chunks.map(({ since }) => now - since));
  return `${step}: ${count(tasks, "task")} in ${count(chunks.length, "chunk")}, for ${duration(longest)}`;
}

function queueTable() {
  const isUnserved = ({ num_workers, depth }) => !num_workers && depth > 0;
  const columns = [
    text("Queue", "name", "name"),
    number("Waiting", "depth", num, "", "Messages that no worker has taken"),
    number("Oldest waits for", "oldest_s", duration),
    number("Workers", "num_workers"),
    text("", (row) => (isUnserved(row) ? "no worker serves it" : "")),
  ];
  return table("Queues", "name", columns, (row) => (isUnserved(row) ? "is-unserved" : ""));
}

function jobTable() {
  return table("Batch jobs that workers live in", ({ scheduler, id }) => `${scheduler}/${id}`, [
    text("Job", "id", "name"),
    text("State", ({ state }) => state.toLowerCase()),
    number("Nodes", "num_nodes"),
    number("Workers", ({ workers }) => workers.length),
    number("Chunks", "num_chunks", num, "", "That its workers run"),
    number("Time left", "left_s", duration),
    text("Hosts", ({ hosts }) => hosts.join(", "), "wide"),
    text("Why it waits", "reason", "why"),
  ]);
}

function stepJobTable() {
  return table("Batch jobs that steps have of their own", ({ instance, scheduler }) => `${scheduler}/${instance}`, [
    text("Step instance", "instance", "name"),
    text("Scheduler", "scheduler"),
    number("Waiting", "pending"),
    number("Refused", "refused"),
    number("Running", "running"),
    number("Just ended", "ended"),
    text("Why they wait", ({ reasons, refusals }) => [...refusals, ...reasons].join(", "), "why"),
  ]);
}
