// All workers and queues of this user, whatever they work on.

import { h } from "../base/dom.js";
import { api } from "../base/routes.js";
import { ask } from "../base/server.js";
import { attempt, waiting } from "../parts/text.js";
import { crewSections } from "./workers.js";

const EVERY_MS = 5000;

export function workersPage({ signal, title }) {
  title("Workers");
  const crew = crewSections();
  const [note, body] = [h("div", waiting()), h(".stack", crew.nodes)];
  let timer = 0;
  body.hidden = true;
  const look = async () => {
    clearTimeout(timer);
    if (document.hidden || signal.aborted) return;
    await attempt(note, { signal }, async () => {
      crew.update(await ask(api.workers(), { signal }));
      body.hidden = false;
    });
    timer = setTimeout(look, EVERY_MS); // after the answer: a slow server is asked less often
  };
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  look();
  return { node: h(".page", h(".page-head", h("h1", "Workers")), note, body) };
}
