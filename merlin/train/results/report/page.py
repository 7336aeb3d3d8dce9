"""The page: what was learned, how well, shown and in numbers, and where it comes from. One file without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from merlin.base.files import replacing, write_text
from merlin.base.text import count, duration
from merlin.shards.plot.canvas import Section, require_matplotlib
from merlin.shards.plot.figure import make_figure, picture
from merlin.shards.plot.page import Part, cards, document, figure
from merlin.train.results.evaluate import Evaluation
from merlin.train.results.history import History, read_history
from merlin.train.results.report import tables
from merlin.train.results.report.agreement import score
from merlin.train.results.report.sections import make_sections

PLOTS = "plots"
REPORT = "report.html"
STYLE = """
.remark { background: var(--card); border-left: 3px solid var(--orange); border-radius: 4px;
  padding: 0.5rem 0.9rem; margin: 0.6rem 0; }
.lead { max-width: 46rem; }
details { margin-top: 0.7rem; }
summary { cursor: pointer; color: var(--blue); }
pre { background: var(--card); border-radius: 8px; padding: 0.8rem 1rem; overflow-x: auto;
  font-size: 0.83rem; line-height: 1.45; }
"""


def write_report(evaluation: Evaluation, out: Path | None = None) -> tuple[Path, list[Path]]:
    """Write `evaluation.json`, the charts as `plots/*.png` and the page; returns the page and the charts.

    The page is `report.html` in the run directory unless `out` says otherwise. Raises MissingExtraError without
    matplotlib.
    """
    require_matplotlib()
    evaluation.save()
    history = read_history(evaluation.run)
    sections = make_sections(evaluation, history)
    charts = []
    for name, section in sections.items():
        charts.append(evaluation.run.path / PLOTS / f"{name}.png")
        with replacing(charts[-1]) as temporary:
            temporary.write_bytes(picture(make_figure([section], "", ""), "png"))
    page = evaluation.run.path / REPORT if out is None else out
    write_text(page, make_page(evaluation, history, sections))
    return page, charts


def make_page(evaluation: Evaluation, history: History, sections: Mapping[str, Section]) -> str:
    """The page's HTML."""
    parts = _parts(evaluation, history, sections)
    name = escape(evaluation.config.name)
    remarks = "".join(f'<p class="remark">{escape(note)}</p>' for note in evaluation.facts["notes"])
    header = f"""<h1>{name}</h1>
<p class="sub">{_subtitle(evaluation.facts)}</p>
{cards(_cards(evaluation.facts, history))}
{remarks}
<p class="lead">{_lead(evaluation)}</p>"""
    return document(name, header, parts, "merlin evaluate", STYLE)


def _parts(evaluation: Evaluation, history: History, sections: Mapping[str, Section]) -> list[Part]:
    """The parts below the header; a chart's numbers follow it."""
    facts = evaluation.facts
    found: list[Part] = []
    if facts["classes"]:
        found.append(("classes", "Classes in numbers", tables.classes_tables(facts["classes"])))
    images = [name for name in sections if name.startswith("images_")]
    for name, section in sections.items():
        numbers = tables.scalars_table(facts["inputs"]) if name == "inputs" else ""
        # the title of the drawing is the text for readers who cannot see it
        drawn = figure(replace(section, title=f"{section.title}: {section.note}"))
        found.append((f"chart-{name}", section.title, drawn + numbers))
        if images and name == images[-1]:
            found.append(("images", "Images in numbers", tables.images_table(facts["images"])))
        if name == "errors":
            found.append(("scalars", "Scalars in numbers", tables.scalars_table(facts["scalars"])))
    found.append(("metrics", "Metrics of the model", tables.metrics_table(evaluation, history)))
    found.append(("trainers", "Trainers", tables.trainers_table(evaluation, history)))
    found.append(("provenance", "Provenance", tables.provenance_table(evaluation)))
    return found


def _subtitle(facts: Mapping[str, Any]) -> str:
    place = f"trainer {facts['trainer']}, step {facts['step']:,}"
    split = "every sample" if facts["split"] == "all" else f"the split <code>{escape(facts['split'])}</code>"
    num = f"{facts['num_samples']:,} samples"
    return f"model <code>{escape(facts['model'])}</code> ({place}), evaluated on {num}: {split}"


def _lead(evaluation: Evaluation) -> str:
    """Two sentences about the meaning of the numbers."""
    facts = evaluation.facts
    inputs = len(evaluation.run_facts.quantities.inputs or evaluation.run_facts.inputs)
    is_own = facts["data"]["digest"] == evaluation.run_facts.data_digest
    is_seen = is_own and facts["split"] == evaluation.config.splits.train
    groups = ((facts["scalars"], "scalar"), (facts["images"], "image field"))
    outputs = [f"the classes of {', '.join(facts['classes'])}"] if facts["classes"] else []
    outputs += [count(len(group), word) for group, word in groups if group]
    if facts["kind"] == "reconstruction":
        what = f"The model squeezes {' and '.join(outputs)} into a latent code and unfolds them again"
    else:
        what = f"The model predicts {' and '.join(outputs)} from {count(inputs, 'input')}"
    seen = "was trained on." if is_seen else "has not learned from."
    if facts["classes"]:
        return (
            f"{what}. All numbers here are of samples that it {seen} Accuracy is the fraction of samples whose class "
            "is the one predicted; cross-entropy is 0 where the true class is always given the probability 1."
        )
    return (
        f"{what}. All errors here are in the units of the data set, on samples that it {seen}"
        " R² is 1 for a perfect model and 0 for one that always says the mean; relative L2 is the size of the error, "
        "divided by the size of the true value; SSIM is the structural similarity of images, 1 where they are equal."
    )


def _cards(facts: Mapping[str, Any], history: History) -> list[tuple[str, str]]:
    found = [
        (f"{100 * of['accuracy']:.3g} %", f"accuracy of {escape(n)}") for n, of in facts["classes"].items()
    ]
    known = {name: of["r2"] for name, of in facts["scalars"].items() if of["r2"] == of["r2"]}
    if known:
        worst = min(known, key=lambda name: known[name])
        found.append((score(median(known.values())), "median R² of scalars"))
        found.append((score(known[worst]), f"lowest R²: {escape(worst)}"))
    if fields := list(facts["images"].values()):
        error, similarity = (fmean(of[key] for of in fields) for key in ("relative_l2", "ssim"))
        found.append((f"{100 * error:.2g} %", "relative L2 of images"))
        found.append((score(similarity), "SSIM of images"))
    seconds = max((t.train_s for t in history.trainers), default=0.0)
    found.append((duration(seconds), f"training, {count(len(history.trainers), 'trainer')}"))
    found.append((f"{facts['num_parameters']:,}", "parameters"))
    return found
