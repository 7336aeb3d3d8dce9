"""What a report's look has beyond that of other pages."""

from __future__ import annotations

from merlin.report.drawings.canvas import STYLE as DRAWINGS
from merlin.report.spec_text import STYLE as SPEC

STYLE = f"""
h1 {{ font-size: 2.4rem; }}
h2.quiet {{ font-size: 1rem; border: 0; padding: 0; margin: 1.2rem 0 0.3rem; }}
h3 {{ font-size: 1rem; margin: 1.5rem 0 0.2rem; }}
.about-study {{ font-size: 1.15rem; max-width: 52rem; margin: 0.3rem 0 0.7rem; }}
.state {{ --tone: var(--soft); display: inline-block; border-radius: 999px; padding: 0.1rem 0.75rem; font-size: 0.85rem;
  font-weight: 600; background: color-mix(in srgb, var(--tone) 22%, var(--paper)); margin-right: 0.3rem; }}
.state::before {{ content: ""; display: inline-block; width: 0.6em; height: 0.6em; border-radius: 50%;
  background: var(--tone); margin-right: 0.45em; }}
.state.finished {{ --tone: var(--green); }}
.state.failed {{ --tone: var(--red); }}
.state.running {{ --tone: var(--blue); }}
.state.stopped, .state.stalled, .state.unknown {{ --tone: var(--orange); }}
.lead {{ max-width: 52rem; margin-top: 1rem; }}
.remark {{ background: var(--card); border-left: 3px solid var(--orange); border-radius: 4px;
  padding: 0.5rem 0.9rem; margin: 0.6rem 0; }}
.bad {{ color: var(--red); font-weight: 600; }}
.bar.tall {{ height: 22px; margin: 0.6rem 0; }}
.bar .retried, .dot.retried {{ background: var(--purple); }}
.bar .between, .dot.between {{ background: color-mix(in srgb, var(--soft) 55%, var(--paper)); }}
.bar .idle, .dot.idle {{ background: var(--rule); }}
.group {{ margin-top: 1.2rem; }}
pre {{ background: var(--card); border-radius: 8px; padding: 0.7rem 1rem; margin: 0.4rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4;
  font: 0.83rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
figure img {{ display: block; width: 100%; min-width: 640px; height: auto; }}
.recipe {{ padding-left: 1.3rem; }}
.recipe li {{ margin: 0.5rem 0; }}
@media print {{
  h3 {{ break-after: avoid; }}
  figure img {{ min-width: 0; }}
  figure svg, figure img {{ max-height: 23cm; }}
  .group, .recipe li {{ break-inside: avoid; }}
  #spec {{ break-before: page; }}
}}
{DRAWINGS}{SPEC}"""
