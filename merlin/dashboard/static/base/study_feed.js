// One study, as the server tells of it: shared by all tabs of its page.

import { api } from "./routes.js";
import { ask } from "./server.js";
import { Stream } from "./stream.js";

const TICK_MS = 5000; // the server is silent while nothing but the time changes

export class StudyFeed {
  #listeners = new Set();
  #said = null; // the latest StudyPage, as the server sent it
  #saidAt = 0;
  page = null; // the same, as it is now
  throughput = null;

  constructor(id, { signal, live }, onTrouble) {
    const begin = (page) => {
      const handlers = {
        study: (news) => this.#take(news),
        throughput: (throughput) => this.#tell({ throughput }),
        gone: ({ error }) => {
          stream.pause(true);
          onTrouble(new Error(error));
        },
      };
      const stream = new Stream(api.study(id, "events"), handlers, { signal, onState: live.onState });
      const timer = setInterval(() => stream.isOpen && this.#tick(), TICK_MS);
      signal.addEventListener("abort", () => clearInterval(timer));
      live.attach(stream);
      this.#take(page);
    };
    ask(api.study(id), { signal }).then(begin, (error) => signal.aborted || onTrouble(error));
  }

  #take(page) {
    [this.#said, this.#saidAt] = [page, performance.now()];
    this.#tell({ page });
  }

  #tick() {
    const { state, now, elapsed_s, eta } = this.#said;
    if (state !== "running") return;
    const passed = (performance.now() - this.#saidAt) / 1e3;
    const left = (seconds) => Math.max(0, seconds - passed);
    const later = eta && { ...eta, low_s: left(eta.low_s), mid_s: left(eta.mid_s), high_s: left(eta.high_s) };
    this.#tell({ page: { ...this.#said, now: now + passed, elapsed_s: elapsed_s + passed, eta: later } });
  }

  #tell(news) {
    Object.assign(this, news);
    for (const listener of this.#listeners) listener(this);
  }

  /** Calls `listener(feed)` now, if there is something, and with everything new until `signal`. */
  listen(listener, signal) {
    this.#listeners.add(listener);
    signal.addEventListener("abort", () => this.#listeners.delete(listener));
    if (this.page) listener(this);
  }
}
