// Runs before the first paint, so that the page never flashes in the wrong colours. A page whose modules did not
// arrive, because the network changed meanwhile, is loaded again once.
const dark = matchMedia("(prefers-color-scheme: dark)");

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
    if (target.tagName !== "SCRIPT" || sessionStorage.getItem("merlin-again")) return;
    sessionStorage.setItem("merlin-again", "yes");
    setTimeout(() => location.reload(), 500);
  };
  addEventListener("error", again, true);
} catch {
  theme.choose("system");
}
