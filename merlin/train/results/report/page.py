"""The page: what was learned, how well, shown and in numbers, and where it comes from. One file without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from msgspec.structs import replace

from merlin.base.files import replacing, write_text
from merlin.base.page.document import Part, cards, document
from merlin.base.text import count
from merlin.shards.plot.canvas import Section, require_matplotlib
from merlin.shards.plot.figure import make_figure, picture, picture_file
from merlin.shards.plot.page import figure
from merlin.train.results.evaluate import Evaluation
from merlin.train.results.history import History, read_history
from merlin.train.results.report import tables
from merlin.train.results.report.brief import PLOTS, quality_cards, quality_subtitle
from merlin.train.results.report.sections import make_sections

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
    """Write `evaluation.json`, the charts as `plots/*.png` and `.svg`, and the page; returns the page and the charts.

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
        write_text(charts[-1].with_suffix(".svg"), picture_file(section))
    page = evaluation.run.path / REPORT if out is None else out
    write_text(page, make_page(evaluation, history, sections))
    return page, charts


def make_page(evaluation: Evaluation, history: History, sections: Mapping[str, Section]) -> str:
    parts = _parts(evaluation, history, sections)
    name = escape(evaluation.config.name)
    remarks = "".join(f'<p class="remark">{escape(note)}</p>' for note in evaluation.facts["notes"])
    header = f"""<h1>{name}</h1>
<p class="sub">{quality_subtitle(evaluation.facts)}</p>
{tables.baseline_table(evaluation.facts.get("baseline"))}
{cards(quality_cards(evaluation.facts, history))}
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
        numbers += tables.uncertainty_table(facts["uncertainty"]) if name == "calibration" else ""
        # the title of the drawing is the text for readers who cannot see it
        drawn = figure(replace(section, title=f"{section.title}: {section.note}"))
        found.append((f"chart-{name}", section.title, drawn + numbers))
        if images and name == images[-1]:
            found.append(("images", "Images in numbers", tables.images_table(facts["images"])))
        if name == "errors":
            found.append(("scalars", "Scalars in numbers", tables.scalars_table(facts["scalars"])))
    metrics = tables.metrics_table(facts, history, evaluation.config.splits.validation)
    found.append(("metrics", "Metrics of the model", metrics))
    found.append(("trainers", "Trainers", tables.trainers_table(history, facts["trainer"])))
    found.append(("provenance", "Provenance", tables.provenance_table(evaluation)))
    return found


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
