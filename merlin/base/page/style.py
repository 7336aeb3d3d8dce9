"""The look of pages; every colour is a variable, so that it follows the reader's light or dark theme."""

THEME = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --card: #f4f5f7; --ink: #1d2330; --soft: #5d6675; --rule: #d5dae1;
  --blue: #2e6db4; --orange: #d9820f; --green: #12876a; --red: #c63d1f; --purple: #8a56ac;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #15181e; --card: #1e222a; --ink: #e8ebf0; --soft: #9aa4b3; --rule: #343b47;
    --blue: #6ea8e6; --orange: #f0a640; --green: #41c39d; --red: #f07a5c; --purple: #c29ae0;
  }
}
"""

FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif'

_LOOK = """
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1100px; padding: 2.2rem 1.4rem 4rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 @FONT@;
}
h1 { font-size: 2rem; line-height: 1.15; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 0.15rem; padding-top: 0.9rem; border-top: 1px solid var(--rule); }
p { margin: 0.25rem 0; }
.sub, .note { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: 0.7rem; margin: 1.3rem 0 1.1rem; }
.cards div { background: var(--card); border-radius: 8px; padding: 0.6rem 1rem; min-width: 8.5rem; flex: 1; }
.cards b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.cards span { color: var(--soft); font-size: 0.85rem; }
.bar { display: flex; gap: 2px; height: 12px; border-radius: 6px; overflow: hidden; }
.bar span { min-width: 3px; }
.outcomes { font-variant-numeric: tabular-nums; }
.dot { display: inline-block; width: 0.62em; height: 0.62em; border-radius: 50%; margin-right: 0.35em; }
.bar .ok, .dot.ok { background: var(--blue); }
.bar .failed, .dot.failed { background: var(--red); }
.bar .filtered, .dot.filtered { background: var(--purple); }
.bar .skipped, .dot.skipped { background: var(--soft); }
.bar .missing, .dot.missing { background: var(--orange); }
nav { margin: 1.2rem 0 0; }
nav a { color: var(--blue); text-decoration: none; margin-right: 1.1rem; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
figure { margin: 0.6rem 0 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 640px; height: auto; }
figure svg text {
  font-family: @FONT@ !important;
  font-variant-numeric: tabular-nums;
}
@media screen and (prefers-color-scheme: dark) { figure svg .tinted image { filter: brightness(1.5) saturate(0.9); } }
.wide { overflow-x: auto; margin-top: 0.7rem; }
table { border-collapse: collapse; font-size: 0.87rem; width: 100%; }
th, td { text-align: left; padding: 0.24rem 0.9rem 0.24rem 0; vertical-align: top; white-space: nowrap; }
.facts th { width: 11em; border-bottom: 1px solid color-mix(in srgb, var(--rule) 45%, transparent); }
.facts td { white-space: normal; }
th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--rule); }
td { border-bottom: 1px solid color-mix(in srgb, var(--rule) 45%, transparent); }
td:has(> .in) .about { padding-left: 1.1em; }
thead td { border-bottom: 1px solid var(--rule); }
.about { display: block; white-space: normal; min-width: 17em; color: var(--soft); line-height: 1.35; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.in { padding-left: 1.1em; color: var(--soft); }
.why { display: block; white-space: normal; min-width: 16em; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 0.92em;
  overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: 0.85rem; }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
@page { margin: 16mm 14mm; }
@media print {
  :root { color-scheme: light; --paper: #fff; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { max-width: none; padding: 0; font-size: 9.5pt; }
  nav { display: none; }
  h2, .note { break-after: avoid; }
  h2 { margin-top: 1.4rem; }
  .cards div, figure, tr, .bar, .outcomes { break-inside: avoid; }
  .cards div { border: 1px solid var(--rule); min-width: 6.5rem; }
  thead { display: table-header-group; }
  .wide, figure { overflow: visible; }
  figure svg { min-width: 0; }
  td, th { white-space: normal; }
}
"""

CSS = THEME + _LOOK.replace("@FONT@", FONT)
