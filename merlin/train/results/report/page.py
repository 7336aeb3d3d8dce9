"""The page: what was learned, how well, shown and in numbers, and where it comes from. One file without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from html import escape
from statistics import median

from merlin.base.text import count, duration
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.figure import drawing
from merlin.shards.plot.page import document
from merlin.train.results.evaluate import Evaluation
from merlin.train.results.history import History
from merlin.train.results.report import tables
from merlin.train.results.report.agreement import score

STYLE = """
.remark { background: var(--card); border-left: 3px solid var(--orange); border-radius: 4px;
  padding: 0.5rem 0.9rem; margin: 0.6rem 0; }
.lead { max-width: 46rem; }
details { margin-top: 0.7rem; }
summary { cursor: pointer; color: var(--blue); }
pre { background: var(--card); border-radius: 8px; padding: 0.8rem 1rem; overflow-x: auto;
  font-size: 0.83rem; line-height: 1.45; }
"""


def make_page(evaluation: Evaluation, history: History, sections: Mapping[str, Section]) -> str:
    """The page's HTML."""
    parts = _parts(evaluation, history, sections)
    links = "".join(f'<a href="#{id}">{escape(title)}</a> ' for id, title, _ in parts)
    body = "\n".join(
        f'<section id="{id}"><h2>{escape(title)}</h2>\n{html}</section>' for id, title, html in parts
    )
    name = escape(evaluation.config.name)
    remarks = "".join(f'<p class="remark">{escape(note)}</p>' for note in evaluation.facts["notes"])
    header = f"""<h1>{name}</h1>
<p class="sub">{_subtitle(evaluation)}</p>
{_cards(evaluation, history)}
{remarks}
<p class="lead">{_lead(evaluation)}</p>
<nav>{links}</nav>"""
    return document(name, header, body, "merlin evaluate", STYLE)


def _parts(
    evaluation: Evaluation, history: History, sections: Mapping[str, Section]
) -> list[tuple[str, str, str]]:
    """(id, title, HTML) of what stands below the header; a chart's numbers follow it."""
    facts = evaluation.facts
    found: list[tuple[str, str, str]] = []
    for name, section in sections.items():
        found.append((f"chart-{name}", section.title, _figure(section)))
        if name == "errors":
            found.append(("scalars", "Scalars in numbers", tables.scalars_table(facts["scalars"])))
        if name == "inputs":
            found[-1] = (*found[-1][:2], found[-1][2] + tables.scalars_table(facts["inputs"]))
    if facts["classes"]:
        found.insert(0, ("classes", "Classes in numbers", tables.classes_tables(facts["classes"])))
    if facts["images"]:
        last = max(i for i, (id, *_) in enumerate(found) if id.startswith("chart-images_"))
        found.insert(last + 1, ("images", "Images in numbers", tables.images_table(facts["images"])))
    found.append(("metrics", "Metrics of the model", tables.metrics_table(evaluation, history)))
    found.append(("trainers", "Trainers", tables.trainers_table(evaluation, history)))
    found.append(("provenance", "Provenance", tables.provenance_table(evaluation)))
    return found


def _figure(section: Section) -> str:
    """With what it shows as the text for readers who cannot see it."""
    told = drawing(replace(section, title=f"{section.title}: {section.note}"))
    return f'<p class="note">{escape(section.note)}</p>\n<figure>{told}</figure>'


def _subtitle(evaluation: Evaluation) -> str:
    facts = evaluation.facts
    place = f"trainer {facts['trainer']}, step {facts['step']:,}"
    num = f"{facts['num_samples']:,} samples"
    split = "every sample" if facts["split"] == "all" else f"the split <code>{escape(facts['split'])}</code>"
    return f"model <code>{escape(facts['model'])}</code> ({place}), evaluated on {num}: {split}"


def _lead(evaluation: Evaluation) -> str:
    """What the numbers mean, in two sentences."""
    facts = evaluation.facts
    inputs = len(evaluation.run_facts.quantities.inputs or evaluation.run_facts.inputs)
    is_own = facts["data"]["digest"] == evaluation.run_facts.data_digest
    is_seen = is_own and facts["split"] == evaluation.config.splits.train
    outputs = [f"the classes of {', '.join(facts['classes'])}"] if facts["classes"] else []
    if facts["scalars"]:
        outputs.append(f"{len(facts['scalars'])} scalar" + ("s" if len(facts["scalars"]) > 1 else ""))
    if facts["images"]:
        outputs.append(f"{len(facts['images'])} image field" + ("s" if len(facts["images"]) > 1 else ""))
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
        + " R² is 1 for a perfect model and 0 for one that always says the mean; relative L2 is the size of the error, "
        "divided by the size of the true value; SSIM is the structural similarity of images, 1 where they are equal."
    )


def _cards(evaluation: Evaluation, history: History) -> str:
    facts = evaluation.facts
    cards = []
    for name, found in facts["classes"].items():
        cards.append((f"{100 * found['accuracy']:.3g} %", f"accuracy of {escape(name)}"))
    if facts["scalars"]:
        found = {name: s["r2"] for name, s in facts["scalars"].items() if s["r2"] == s["r2"]}
        if found:
            worst = min(found, key=lambda name: found[name])
            cards.append((score(median(found.values())), "median R² of scalars"))
            cards.append((score(found[worst]), f"lowest R²: {escape(worst)}"))
    if facts["images"]:
        fields = list(facts["images"].values())
        error = sum(f["relative_l2"] for f in fields) / len(fields)
        cards.append((f"{100 * error:.2g} %", "relative L2 of images"))
        cards.append((score(sum(f["ssim"] for f in fields) / len(fields)), "SSIM of images"))
    seconds = max((t.train_s for t in history.trainers), default=0.0)
    cards.append((duration(seconds), f"training, {count(len(history.trainers), 'trainer')}"))
    cards.append((f"{facts['num_parameters']:,}", "parameters"))
    return (
        '<div class="cards">'
        + "".join(f"<div><b>{big}</b><span>{what}</span></div>" for big, what in cards)
        + "</div>"
    )
