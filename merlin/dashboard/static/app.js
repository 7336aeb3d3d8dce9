// The frame: which page is shown, and the tools at the top.

import { fill, h, set } from "./base/dom.js";
import { api, parse, place } from "./base/routes.js";
import { ask } from "./base/server.js";
import { workersPage } from "./pages/all_workers.js";
import { studiesPage } from "./pages/studies.js";
import { studyPage } from "./pages/study.js";
import { nothing, trouble } from "./parts/text.js";
import { connection, keysButton, themeButton } from "./parts/tools.js";

const PAGES = { studies: studiesPage, study: studyPage, workers: workersPage };
const PLACES = [
  { words: "Studies", href: place.studies(), pages: ["studies", "study"] },
  { words: "Workers", href: place.workers(), pages: ["workers"] },
];

const main = document.getElementById("main");
const app = { session: null, live: connection(), go, title };
let shown = null; // {page, leaving}

/** Goes to a page of ours; `replace` leaves no trace in the history. */
function go(where, replace = false) {
  const [url, before] = [new URL(where, document.baseURI), location.pathname];
  history[replace ? "replaceState" : "pushState"](null, "", url);
  route();
  if (url.pathname === before) return; // the same page, asked for something else
  window.scrollTo(0, 0); // a new page begins at its top, and a screen reader begins there, too
  main.focus({ preventScroll: true });
}

function route() {
  const to = parse(new URL(location.href));
  for (const { node, pages } of PLACES) set(node, "aria-current", pages.includes(to.page) ? "page" : null);
  if (shown?.page.takes?.(to)) return shown.page.turn(to); // tabs of one study share its page and its stream
  shown?.leaving.abort();
  app.live.reset();
  const leaving = new AbortController();
  const page = (PAGES[to.page] ?? missingPage)({ ...app, signal: leaving.signal }, to);
  shown = { page, leaving };
  return fill(main, page.node);
}

function title(...words) {
  document.title = [...words, "Merlin"].join(" · ");
}

function missingPage() {
  title("No such page");
  const back = h("a", { href: place.studies() }, "All studies");
  return { node: h(".page", h("h1", "No such page"), nothing("Nothing of the dashboard has this address."), back) };
}

/** Links of ours change the page without loading it; those with a key held, or to files, are the browser's. */
function follow(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.getAttribute("href"), document.baseURI);
  if (link.hasAttribute("download") || !parse(url).page) return;
  event.preventDefault();
  if (link.id === "skip") main.focus();
  else go(url);
}

async function begin() {
  arrived();
  for (const one of PLACES) one.node = h("a", { href: one.href }, one.words);
  fill(
    document.getElementById("places"),
    PLACES.map(({ node }) => node),
  );
  fill(document.getElementById("tools"), app.live.node, themeButton(), keysButton(go));
  document.addEventListener("click", follow);
  window.addEventListener("popstate", route);
  try {
    app.session = await ask(api.session());
  } catch (error) {
    return fill(main, trouble(error));
  }
  return route();
}

begin();
