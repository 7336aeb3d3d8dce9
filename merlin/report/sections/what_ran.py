"""What was run: the graph of the steps, parameters, samples, and where the study comes from."""

from __future__ import annotations

from html import escape

from merlin.base.page.table import facts_table, table
from merlin.base.text import count, duration
from merlin.report.drawings.canvas import spark
from merlin.report.drawings.step_graph import draw_graph
from merlin.report.facts import ReportFacts, moment
from merlin.report.samples import Column, SamplesSummary
from merlin.shards.plot.ticks import number

_MOST_VALUES = 12  # of a parameter
_MOST_COLUMNS = 60
_MOST_RUNS = 40


def steps_graph(facts: ReportFacts) -> str:
    """The graph, and what each step is for."""
    about = {i.step: i.description for i in facts.study.plan.instances}
    rows = [
        [
            f"<b>{escape(node.step)}</b>",
            f'<span class="why">{escape(about[node.step])}</span>',
            escape(node.caption),
        ]
        for node in facts.nodes
    ]
    note = '<p class="note">Thin lines go sample by sample, thick ones wait for all, dotted ones fill shards.</p>'
    drawn = draw_graph(facts.nodes)
    return (note + drawn if drawn else "") + table(("step", "does", "in"), rows)


def samples(facts: ReportFacts) -> str:
    """Columns of the samples with their ranges, and parameters with their values."""
    parts = []
    if facts.samples is not None:
        parts.append(_samples_table(facts.samples))
    if facts.parameters:
        rows = [
            [f"<b>{escape(p.name)}</b>", _values([str(v) for v in p.values]), escape(", ".join(p.steps))]
            for p in facts.parameters
        ]
        parts.append(table(("parameter", "values", "used by"), rows))
    return "\n".join(parts)


def _values(values: list[str]) -> str:
    more = f" … and {len(values) - _MOST_VALUES:,} more" if len(values) > _MOST_VALUES else ""
    return f'<span class="why">{escape(", ".join(values[:_MOST_VALUES]))}{more}</span>'


def _samples_table(found: SamplesSummary) -> str:
    if found.problem:
        return f'<p class="remark">The samples cannot be read: {escape(found.problem)}</p>'
    read = "" if found.num_read == found.num else f", seen in {found.num_read:,} of them"
    more = len(found.columns) - _MOST_COLUMNS
    hidden = f"; {count(more, 'more column')} not shown" if more > 0 else ""
    note = f'<p class="note">{count(found.num, "sample")}{read}{hidden}</p>'
    rows = [_column(column) for column in found.columns[:_MOST_COLUMNS]]
    return note + table(
        ("column", "least", "mean", "greatest", "spread"), rows, right=("least", "mean", "greatest")
    )


def _column(column: Column) -> list[str]:
    name = f"<b>{escape(column.name)}</b>"
    if column.words:
        more = column.num_words - len(column.words)
        shown = ", ".join(column.words) + (f" … and {more:,} more" if more else "")
        return [name, "", "", "", f'<span class="why">{escape(shown)}</span>']
    shape = spark(column.bars, f"how the values of {column.name} are spread")
    return [name, number(column.low, 4), number(column.mean, 4), number(column.high, 4), shape]


def provenance(facts: ReportFacts) -> str:
    """Versions, commits, who, where and how; and every run of the study."""
    plan, known = facts.study.plan, facts.provenance
    versions = [f"merlin {plan.code_version}"] if plan.code_version else []
    versions += [f"Python {known.python}"] if known.python else []
    versions += [f"{name} {version}" for name, version in known.packages.items()]
    listed = [
        ("command", known.command),
        ("in", known.directory),
        ("by", f"{known.user} on {known.host}" if known.user else ""),
        ("planned", plan.created),
        ("versions", ", ".join(versions)),
        ("system", known.system),
        ("commit of the spec", str(known.spec_commit)),
        ("commit of Merlin", str(known.code_commit)),
        ("spec", plan.spec_path),
        ("spec digest", plan.spec_digest),
        ("seed", str(plan.seed) if plan.seed else ""),
        ("study id", plan.study_id),
        ("workspace", str(facts.study.path)),
        ("extensions", ", ".join(study.member for study in facts.studies[1:])),
    ]
    return facts_table((name, value) for name, value in listed if value) + _runs(facts)


def _runs(facts: ReportFacts) -> str:
    if not facts.runs:
        return ""
    shown = facts.runs[-_MOST_RUNS:]
    rows = [
        [
            moment(run.started),
            escape(run.member),
            escape(run.where),
            "" if run.ended is None else duration(run.ended - run.started),
            escape(
                run.end
                or ("is running" if facts.page.state == "running" and run is shown[-1] else "left no word")
            ),
        ]
        for run in shown
    ]
    before = len(facts.runs) - len(shown)
    note = f'<p class="note">The last {len(shown)} of {len(facts.runs)} runs</p>' if before else ""
    return note + table(("run", "", "by", "time", "went"), rows, right=("time",))
