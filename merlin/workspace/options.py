"""What the command line adds to a spec."""

from __future__ import annotations

from msgspec import Struct


class StudyOptions(Struct, frozen=True, kw_only=True):
    """The options, without the variables of --vars, which are already in the loaded spec."""

    samples_file: str | None = None  # --samplesfile: used instead of the spec's samples
    pgen: str | None = None
    pargs: tuple[str, ...] = ()
    allow_undefined: bool = False  # $(NAME) that nothing defines is a warning
    is_dry: bool = False  # nothing will run here: scripts are for the schedulers that the spec names
