// Details that are asked for again only when they changed, are seen, and were not asked for a moment ago.

const REST_MS = 4000;

/**
 * `want(key)` says what should be shown now; `load()` is called when that is another than what is shown, and once more
 * if it gave false, because there will be something newer in a moment.
 */
export class Refresher {
  #wanted = null;
  #shown = null;
  #isSeen = false;
  #isBusy = false;
  #isUrgent = false;
  #last = -Infinity;
  #timer = 0;

  constructor(node, load, { signal, restMs = REST_MS }) {
    Object.assign(this, { load, restMs, signal });
    const see = (entries) => {
      this.#isSeen = entries.at(-1).isIntersecting;
      this.#look();
    };
    const observer = new IntersectionObserver(see, { rootMargin: "200px" });
    observer.observe(node);
    document.addEventListener("visibilitychange", () => this.#look(), { signal });
    signal.addEventListener("abort", () => observer.disconnect());
  }

  /** `isUrgent`: the reader asked for something else, and does not wait. */
  want(key, isUrgent = false) {
    this.#wanted = key;
    this.#isUrgent ||= isUrgent;
    this.#look();
  }

  async #look() {
    clearTimeout(this.#timer);
    if (this.#isBusy || !this.#isSeen || document.hidden || this.#wanted === this.#shown || this.signal.aborted) return;
    const wait = this.#isUrgent ? 0 : this.#last + this.restMs - performance.now();
    if (wait > 0) {
      this.#timer = setTimeout(() => this.#look(), wait);
      return;
    }
    const key = this.#wanted;
    [this.#isBusy, this.#isUrgent] = [true, false];
    const isNewest = (await this.load()) !== false;
    [this.#isBusy, this.#shown, this.#last] = [false, isNewest ? key : null, performance.now()];
    this.#look();
  }
}
