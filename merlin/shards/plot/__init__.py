"""Pictures of a data set: for notebooks, as files, and as one page to send to somebody.

ens = merlin.open_shards("study_20260101-120000/collect")
ens.plot()                           # a matplotlib Figure with everything
ens.plot("inputs", split="train")    # one kind of chart
merlin.shards.plot.write_plot(ens, "icf.html")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from merlin.base.files import replacing
from merlin.base.kinds import CHARTS
from merlin.errors import UsageError
from merlin.shards.describe import describe_data_set
from merlin.shards.plot.canvas import require_matplotlib
from merlin.shards.plot.figure import make_figure, picture
from merlin.shards.plot.page import make_page
from merlin.shards.plot.sections import Request, make_sections
from merlin.shards.plot.tables import summary
from merlin.shards.reading.reader import SampleReader

SUFFIXES = (".png", ".html", ".pdf", ".svg")


def plot(reader: SampleReader, kind: str = "all", **options: Any) -> Any:
    """Draw a data set as a matplotlib Figure, 10 inches wide; for kinds and options see `request`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: a name does not exist, or nothing can be drawn.
    """
    require_matplotlib()
    return make_figure(make_sections(reader, request(kind, **options)), *_heading(reader))


def request(
    kind: str = "all", *, fields: Sequence[str] = (), num: int = 12, split: str = "", query: str = ""
) -> Request:
    """What `plot` and `write_plot` are to draw.

    `kind` is one of `CHARTS` or "all"; `fields` name fields, inputs and graphs; `num` samples are shown in contact
    sheets; `split` and `query` (see `Ensemble.query`) select samples. Raises UsageError for an unknown kind, and unless
    `num` is a whole number from 1 on.
    """
    if kind != "all" and kind not in CHARTS:
        raise UsageError(f"no charts of kind '{kind}'; there are: all, {', '.join(CHARTS)}")
    if not isinstance(num, int | Integral) or num < 1:
        raise UsageError(f"num has to be a whole number from 1 on, not {num!r}")
    return Request(CHARTS if kind == "all" else (kind,), tuple(fields), num, split, query)


def write_plot(
    reader: SampleReader,
    out_path: str | os.PathLike[str],
    wanted: Request | None = None,
    on_section: Callable[[str], None] = lambda kind: None,
) -> Path:
    """Write a picture (.png, .pdf, .svg) or a page (.html), as the suffix says; returns its path.

    `on_section` is called with the kind of each chart before its data is read. Raises as `plot`, and UsageError for
    another suffix.
    """
    path = Path(out_path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: pictures are written as {', '.join(SUFFIXES)}, as the file's name ends")
    require_matplotlib()
    sections = make_sections(reader, wanted or request(), on_section)
    on_section("drawing")
    if suffix == ".html":
        content = make_page(describe_data_set(reader.manifest), sections).encode(errors="replace")
    else:
        content = picture(make_figure(sections, *_heading(reader)), suffix[1:])
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def summary_html(reader: SampleReader) -> str:
    """A data set in a few lines of HTML, as a notebook shows it."""
    return summary(describe_data_set(reader.manifest), len(reader))


def _heading(reader: SampleReader) -> tuple[str, str]:
    """The name of the study, and what became of its samples."""
    data = reader.manifest
    finished = str(data.study.get("finished", ""))[:10]
    return str(data.study.get("name", "")), ", ".join(word for word in (str(data.counts), finished) if word)
