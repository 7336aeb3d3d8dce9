// All workers and queues of this user, whatever they work on.

import { h } from "../base/dom.js";
import { api } from "../base/routes.js";
import { ask } from "../base/server.js";
import { attempt, waiting } from "../parts/text.js";
import { workerSections } from "./workers.js";

const EVERY_MS = 5000;

export function workersPage({ signal, title }) {
  title("Workers");
  const sections = workerSections();
  const [note, body] = [h("div", waiting()), h(".stack", sections.nodes)];
  let timer = 0;
  body.hidden = true;
  const look = async () => {
    clearTimeout(timer);
    if (document.hidden || signal.aborted) return;
    await attempt(note, { signal }, async () => {
      sections.update(await ask(api.workers(), { signal }));
      body.hidden = false;
    });
    timer = setTimeout(look, EVERY_MS); // after the answer: a slow server is asked less often
  };
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  look();
  return { node: h(".page", h(".page-head", h("h1", "Workers")), note, body) };
}
