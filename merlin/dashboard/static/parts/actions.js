// The report of a study, and what can be done to it, where the dashboard may do anything at all.

import { h, set, show, write } from "../base/dom.js";
import { count, num } from "../base/format.js";
import { api } from "../base/routes.js";
import { confirmAction } from "./dialogs.js";
import { button } from "./section.js";

/** Of each action: its button, when there is one, and what is asked before. */
const ACTIONS = {
  "rerun-failed": {
    words: "Rerun failed …",
    isFor: ({ totals }) => totals.failed > 0,
    ask: ({ totals, name }) => ({
      title: `Run the failed tasks of ${name} again?`,
      lines: [
        `${count(totals.failed, "task")} that failed, and ${num(totals.skipped)} that were skipped because of failures, run once more.`,
        "What has ended ok stays as it is.",
      ],
      verb: "Rerun them",
    }),
  },
  submit: {
    words: "Submit an allocation …",
    isFor: ({ executor, totals }) => executor === "workers" && totals.missing > 0,
    ask: ({ name }) => ({
      title: "Submit an allocation?",
      lines: [
        `A batch job is submitted, as the spec of ${name} describes it. Its workers take tasks of this study's queues, and leave when none waits.`,
        "It costs time of your account on the machine.",
      ],
      verb: "Submit it",
    }),
  },
  "stop-workers": {
    words: "Stop workers …",
    isFor: ({ executor, workers }) => executor === "workers" && workers.length > 0,
    ask: ({ workers }) => ({
      title: `Stop ${count(workers.length, "worker")}?`,
      lines: [
        "Each ends what it runs, and leaves. Tasks that have not begun wait for other workers.",
        "Other studies on the same workers wait, too.",
      ],
      verb: "Stop them",
      isGrave: true,
    }),
  },
  cancel: {
    words: "Cancel …",
    isFor: ({ state }) => ["running", "stalled"].includes(state),
    ask: ({ totals, name }) => ({
      title: `Cancel ${name}?`,
      lines: [
        `What runs is killed, and up to ${count(totals.missing, "task")} will be missing. Everything that has ended is kept.`,
        "merlin restart finishes the study later.",
      ],
      verb: "Cancel the study",
      keep: "Let it run",
      isGrave: true,
    }),
  },
};

/** `update(page, session)`. */
export function actionButtons() {
  const done = h("span.done");
  const report = h("a.button", { title: "One page to keep or to send" }, "Report");
  let now;
  const perform = (name) => {
    const [page, session] = now;
    const question = { ...ACTIONS[name].ask(page), path: api.action(page.id, name) };
    confirmAction(question, session.csrf, (sentence) => write(done, sentence));
  };
  const buttons = Object.entries(ACTIONS).map(([name, { words, isFor }]) => [
    isFor,
    button(words, () => perform(name)),
  ]);
  const update = (page, session) => {
    now = [page, session];
    set(report, "href", api.study(page.id, "report"));
    for (const [isFor, node] of buttons) show(node, session.actions && isFor(page));
  };
  return {
    node: h(
      ".actions",
      report,
      buttons.map(([, node]) => node),
      done,
    ),
    update,
  };
}

/** Asks whether the failed tasks of one step run again. */
export function rerunStep(page, step, session, done) {
  const { failed } = page.steps.find((line) => line.step === step) ?? page.totals;
  const title = `Run the failed tasks of ${step} again?`;
  const lines = [`${count(failed, "task")} that failed, and what was skipped because of them, run once more.`];
  const path = api.action(page.id, "rerun-failed");
  confirmAction({ title, lines, verb: "Rerun them", path, body: { steps: [step] } }, session.csrf, done);
}
