// The tools at the top: whether the page is live, its colours, its keys.

import { h, set, show, write } from "../base/dom.js";
import { place } from "../base/routes.js";
import { showKeys } from "./dialogs.js";
import { button, tick } from "./section.js";
import { say } from "./text.js";

const CALM_MS = 2500; // a connection that comes back at once was not lost
const CONNECTION = {
  live: ["Live", "Press to pause the updates"],
  connecting: ["Connecting", "Connecting to the server"],
  lost: ["Not connected", "What you see may be old. It connects again by itself as soon as the server answers."],
  paused: ["Paused", "Press for live updates"],
};

/** A quiet mark, which is also the button that pauses. `reset()`, then `attach(stream)`, which tells `onState`. */
export function connection() {
  const word = h("span");
  const node = button([h("span.live-dot", { "aria-hidden": "true" }), word], () => stream?.pause(shown !== "paused"));
  let [shown, next, stream, timer] = ["", "", null, 0];
  const put = () => {
    if (next === "lost" || shown === "lost") say(CONNECTION[next][0]);
    shown = next;
    write(word, CONNECTION[shown][0]);
    set(node, "class", `tool is-${shown}`);
    set(node, "title", CONNECTION[shown][1]);
    show(node, true);
  };
  const reset = () => {
    clearTimeout(timer);
    [shown, next, stream] = ["", "", null];
    show(node, false);
  };
  const onState = (state) => {
    if (state === "connecting" && next === "lost") return; // a try is not yet better news
    next = state;
    clearTimeout(timer);
    if (state === "lost" && shown !== "lost") timer = setTimeout(put, CALM_MS);
    else put();
  };
  reset();
  return { node, reset, onState, attach: (given) => (stream = given) };
}

/** What the browser keeps for the next visit, if it keeps anything. */
function kept(name, value) {
  try {
    return value ? localStorage.setItem(name, value) : localStorage.getItem(name);
  } catch {
    return null;
  }
}

const THEMES = { system: "◐", light: "☀", dark: "☾" };

/** Light, dark, or as the system has it; `theme` is in first.js. */
export function themeButton() {
  const draw = () => {
    write(node, THEMES[theme.chosen]);
    set(node, "aria-label", `Colours: ${theme.chosen}`);
    set(node, "title", `Colours: ${theme.chosen} (t)`);
  };
  const node = button(
    "",
    () => {
      const names = Object.keys(THEMES);
      theme.choose(names[(names.indexOf(theme.chosen) + 1) % names.length]);
      kept("merlin-theme", theme.chosen);
      draw();
      say(`Colours: ${theme.chosen}`);
    },
    "tool",
  );
  node.id = "theme";
  draw();
  return node;
}

const KEYS = [
  ["Everywhere", { "/": "to the filter", "g s": "studies", "g w": "workers", t: "light or dark", "?": "this list" }],
  [
    "In a study",
    {
      "g o": "overview",
      "g t": "tasks",
      "g f": "failures",
      "g c": "its workers",
      "g d": "data sets",
      "g r": "training",
    },
  ],
  ["At a task", { "[": "the task before", "]": "the next task" }],
];
const GOALS = { s: place.studies, w: place.workers };
const STUDY_GOALS = {
  o: place.study,
  t: place.tasks,
  f: place.failures,
  c: place.studyWorkers,
  d: place.data,
  r: place.training,
};
const NODES = { "/": "[data-filter]", t: "#theme", "[": "[data-previous]", "]": "[data-next]" };
const PATIENCE_MS = 1200; // between the two keys of a pair

/** Keys, for those who like them. Returns the button that shows them. */
export function keysButton(go) {
  const areOn = () => kept("merlin-keys") !== "off";
  const open = () =>
    showKeys(
      KEYS,
      tick("Keys without Ctrl or Alt do something", areOn(), (isOn) => kept("merlin-keys", isOn ? "on" : "off")),
    );
  let afterG = -Infinity;
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("input, select, dialog")) return;
    const where = event.timeStamp - afterG < PATIENCE_MS ? goal(key) : null;
    afterG = key === "g" ? event.timeStamp : -Infinity;
    if (key === "?") open();
    else if (where != null && areOn()) go(where);
    else if (areOn()) press(key, event);
  });
  const node = button("?", open, "tool");
  set(node, "title", "Keys (?)");
  set(node, "aria-label", "Keys");
  return node;
}

function goal(key) {
  const id = document.querySelector("[data-study]")?.dataset.study;
  return GOALS[key]?.() ?? (id == null ? null : STUDY_GOALS[key]?.(id));
}

function press(key, event) {
  const node = document.querySelector(NODES[key] ?? "nothing");
  if (!node) return;
  event.preventDefault();
  if (key === "/") node.focus();
  else node.click();
}
