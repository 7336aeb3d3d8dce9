// Runs before the first paint, so that the page never flashes in the wrong colours. A page whose modules did not
// arrive, because the network changed meanwhile, is loaded again, a few times.
const MOST_TIMES = 5;
const WAIT_MS = 500; // twice as long after each time
const dark = matchMedia("(prefers-color-scheme: dark)");

/** The modules are here: the next time that they are not, count from the beginning. */
globalThis.arrived = () => {
  try {
    sessionStorage.removeItem("merlin-again");
  } catch {
    // a browser that keeps nothing has no count
  }
};

/** Light, dark, or as the system has it ("system"); a browser that keeps nothing forgets it. */
globalThis.theme = {
  chosen: "system",
  choose(chosen) {
    this.chosen = chosen;
    document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  },
};
dark.addEventListener("change", () => theme.choose(theme.chosen));
try {
  theme.choose(localStorage.getItem("merlin-theme") ?? "system");
  const again = ({ target }) => {
    const times = Number(sessionStorage.getItem("merlin-again")) || 0;
    if (target.tagName !== "SCRIPT" || times >= MOST_TIMES) return;
    sessionStorage.setItem("merlin-again", times + 1);
    setTimeout(() => location.reload(), WAIT_MS * 2 ** times);
  };
  addEventListener("error", again, true);
} catch {
  theme.choose("system");
}
