// A stream of the server's events that comes back by itself, and rests while nobody looks.

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30_000;
const HIDDEN_MS = 20_000; // a browser has six connections to a server, for all of its tabs

/** `handlers` by event; `onState` hears of "connecting", "live", "lost" and "paused". */
export class Stream {
  #source = null;
  #timer = 0;
  #wait = FIRST_WAIT_MS;
  #isPaused = false;

  constructor(path, handlers, { signal, onState }) {
    Object.assign(this, { path, handlers, onState });
    signal.addEventListener("abort", () => this.#close());
    document.addEventListener("visibilitychange", () => this.#look(), { signal });
    window.addEventListener("online", () => this.#look(), { signal });
    this.#open();
  }

  get isOpen() {
    return this.#source !== null;
  }

  pause(isPaused) {
    this.#isPaused = isPaused;
    this.#close();
    if (isPaused) this.onState("paused");
    else this.#open();
  }

  #open() {
    this.#close();
    if (document.hidden) return; // it opens when somebody looks
    this.onState("connecting");
    this.#source = new EventSource(this.path);
    this.#source.onopen = () => {
      this.#wait = FIRST_WAIT_MS;
      this.onState("live");
    };
    this.#source.onerror = () => this.#lost();
    for (const [event, handle] of Object.entries(this.handlers)) {
      this.#source.addEventListener(event, (message) => handle(JSON.parse(message.data)));
    }
  }

  #lost() {
    this.#close();
    this.onState("lost");
    const jitter = 0.5 + Math.random() / 2; // a hundred browsers do not come back in the same moment
    this.#timer = setTimeout(() => this.#open(), this.#wait * jitter);
    this.#wait = Math.min(LONGEST_WAIT_MS, this.#wait * 2);
  }

  #look() {
    if (document.hidden) {
      if (this.#source) this.#timer = setTimeout(() => this.#close(), HIDDEN_MS);
      return;
    }
    clearTimeout(this.#timer);
    if (!this.#source && !this.#isPaused) this.#open();
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }
}
