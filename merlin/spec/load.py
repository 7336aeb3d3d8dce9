"""Reading a spec: text -> tree -> variables filled in -> checked -> typed. All findings come at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.document.findings import NOWHERE, Findings, SourceText
from merlin.base.document.scalars import Scalar
from merlin.base.document.tokens import substitute
from merlin.base.document.tree import Entry, parse, to_data
from merlin.errors import Diagnostic, SpecError
from merlin.spec import provenance
from merlin.spec.checks import check
from merlin.spec.defaults import fill
from merlin.spec.expand import Expansion, expand, override, with_block

if TYPE_CHECKING:
    from merlin.spec.model import Document


@dataclass(frozen=True)
class Spec:
    """A spec that may run.

    `document` has user variables filled in; tokens of parameters, samples, workspaces and reserved variables
    are left in it as text.
    """

    path: Path
    text: str  # as it is in the file
    document: Document
    variables: dict[str, Scalar]  # env.variables, env.labels and --vars; values filled in, `~` and $HOME too
    warnings: list[Diagnostic] = field(default_factory=list)
    tree: Entry = field(default_factory=lambda: Entry(None), repr=False)  # as written, with --vars
    expanded: Entry = field(default_factory=lambda: Entry(None), repr=False)  # with user variables filled in

    def position(self, *keys: str | int) -> tuple[int, int]:
        """Line and column of a value, e.g. `("study", 2, "run")`, or of the nearest block above it."""
        entry = self.expanded.nearest(keys)
        return entry.place if entry.place != NOWHERE else entry.key_place

    def finding(
        self,
        where: Sequence[str | int],
        message: str,
        code: str,
        hint: str = "",
        *,
        text: str = "",
        severity: Literal["error", "warning"] = "error",
    ) -> Diagnostic:
        """A finding about the value at `where`; see `position`."""
        return Diagnostic(str(self.path), *self.position(*where), message, text, hint, severity, code)

    def partial_yaml(self) -> str:
        """The spec with --vars, --samplesfile and defaults in it, and all tokens still there."""
        return provenance.dump(self.tree)

    def expanded_yaml(
        self,
        runtime_variables: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> str:
        """The spec with user variables and the given `variables` (SPECROOT, MERLIN_INFO, …) filled in.

        `parameters` of a generator replace global.parameters.
        """
        values = {name: str(value) for name, value in (runtime_variables or {}).items()}
        return provenance.dump(self.expanded, values, parameters)

    @property
    def digest(self) -> str:
        """SHA-256 of the expanded spec, the same wherever and whenever it runs."""
        return hashlib.sha256(self.expanded_yaml().encode()).hexdigest()


class HowToRead(TypedDict, total=False):
    """What the command line says about a spec."""

    variables: Mapping[str, str] | None  # --vars
    samples_file: str | None  # replaces merlin.samples.file
    parameters: Collection[str] | None  # names that a generator puts in place of global.parameters
    allow_undefined: bool  # a $(NAME) that nothing defines is a warning


def load_spec(path: str | os.PathLike[str], **how: Unpack[HowToRead]) -> Spec:
    """Read a spec. Raises SpecError with every finding if one of them is an error."""
    spec, diagnostics = check_spec(path, **how)
    if spec is None:
        raise SpecError(diagnostics)
    return spec


def check_spec(
    path: str | os.PathLike[str], **how: Unpack[HowToRead]
) -> tuple[Spec | None, list[Diagnostic]]:
    """The spec, or None if it has errors, with all findings; errors first, then by place."""
    # pydantic is only worth its start-up time once there is a spec
    from merlin.base.document.validation import validate_as
    from merlin.spec.model import Document

    findings = Findings(os.fspath(path))
    reading = _read_tree(Path(path), how.get("variables") or {}, how.get("samples_file"), findings)
    if reading is None:
        return None, findings.sorted()
    text, tree, expansion = reading
    parameters, allow_undefined = how.get("parameters"), how.get("allow_undefined", False)
    known = expansion if parameters is None else _with_parameters(expansion, parameters)
    check(SourceText(findings.file, text), tree, known, findings, allow_undefined=allow_undefined)
    data = _for_workers(fill(to_data(expansion.tree)), os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120
    document = validate_as(Document, data, expansion.tree, findings)
    diagnostics = findings.sorted()
    if document is None or findings.failed:
        return None, diagnostics
    spec = Spec(
        path=Path(os.path.abspath(path)),  # noqa: PTH100 - links in the path are kept, as $(SPECROOT) shows it
        text=text,
        document=document,
        variables=expansion.variables,
        warnings=diagnostics,
        tree=tree,
        expanded=expansion.tree,
    )
    return spec, diagnostics


def _for_workers(data: dict[str, Any], root: str) -> dict[str, Any]:
    """The spec with $(SPECROOT) filled in where workers have no study that does it."""

    def at_root(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: at_root(item) for key, item in value.items()}
        if isinstance(value, list):
            return [at_root(item) for item in value]
        return substitute(value, {"SPECROOT": root}) if isinstance(value, str) else value

    merlin = data["merlin"]
    if isinstance(merlin, dict):
        merlin = {**merlin, "resources": at_root(merlin["resources"])}
    return {**data, "batch": at_root(data["batch"]), "merlin": merlin}


def _with_parameters(expansion: Expansion, names: Collection[str]) -> Expansion:
    old = expansion.tree.get("global.parameters").mapping
    block = {name: old.get(name, Entry(None)) for name in names}
    return replace(expansion, tree=with_block(expansion.tree, "global.parameters", block))


def read_variables(
    path: str | os.PathLike[str], *, variables: Mapping[str, str] | None = None
) -> dict[str, Scalar]:
    """The variables of a spec that need not be valid."""
    reading = _read_tree(Path(path), variables or {}, None, Findings(os.fspath(path)))
    return {} if reading is None else reading[2].variables


class SamplesBlock(Struct, frozen=True):
    """The samples block of a spec, as far as it can be read when other parts of the spec are wrong."""

    spec_path: Path
    file: str  # user variables filled in; "" if the block names none
    place: tuple[int, int]  # of file; (0, 0) if the command line names it
    labels: tuple[str, ...]
    generated: bool  # whether the file may be made when the study runs
    output_path: str  # the variable, or ""
    dependencies: dict[str, str]  # name of a path in env.dependencies -> the path as written


def read_samples_block(
    path: str | os.PathLike[str],
    *,
    variables: Mapping[str, str] | None = None,
    samples_file: str | None = None,
) -> SamplesBlock | None:
    """The samples block of a spec that need not be valid; None if it has none that names columns."""
    reading = _read_tree(Path(path), variables or {}, samples_file, Findings(os.fspath(path)))
    if reading is None:
        return None
    _, _, expansion = reading
    samples = expansion.tree.get("merlin", "samples")
    labels = tuple(item.text for item in samples.get("column_labels").items)
    if not labels or not all(labels):
        return None
    file = samples.get("file")
    return SamplesBlock(
        spec_path=Path(path),
        file=file.text,
        place=file.place if samples_file is None else NOWHERE,
        labels=labels,
        generated=bool(samples.get("generate").mapping),
        output_path=str(expansion.variables.get("OUTPUT_PATH", "")),
        dependencies={
            item.get("name").text: item.get("path").text
            for item in expansion.tree.get("env", "dependencies", "paths").items
        },
    )


def _read_tree(
    path: Path, variables: Mapping[str, str], samples_file: str | None, findings: Findings
) -> tuple[str, Entry, Expansion] | None:
    """The text, its tree with the values of the command line, and the same tree with user variables filled in."""
    text = _read(path, findings)
    if text is None:
        return None
    tree = parse(SourceText(findings.file, text), findings)
    if tree is None:
        return None
    tree = override(tree, variables, text, findings)
    if samples_file is not None:
        tree = _with_samples_file(tree, samples_file, findings)
    return text, tree, expand(tree, findings)


def _read(path: Path, findings: Findings) -> str | None:
    try:
        raw = path.read_bytes()
    except OSError as error:
        findings.error(NOWHERE, f"cannot read the spec: {error.strerror}", text=str(path), code="unreadable")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        col = error.start - (before.rfind(b"\n") + 1) + 1
        message = "the spec is not UTF-8 text"
        findings.error((line, col), message, text=repr(raw[error.start : error.end]), code="encoding")
        return None


def _with_samples_file(tree: Entry, samples_file: str, findings: Findings) -> Entry:
    """--samplesfile replaces the file, and nothing generates it."""
    merlin, samples = tree.get("merlin"), tree.get("merlin", "samples")
    if not samples.mapping:
        message = "--samplesfile is given, but the spec has no merlin.samples block"
        hint = "add merlin: {samples: {column_labels: [...]}}"
        findings.command_line(message, text=samples_file, hint=hint, code="samples")
        return tree
    old = samples.get("file")
    path = os.path.abspath(os.path.expanduser(samples_file))  # noqa: PTH100, PTH111 - links are kept
    content = {key: item for key, item in samples.mapping.items() if key != "generate"}
    content["file"] = Entry(path, old.place, old.key_place)
    return with_block(tree, "merlin", with_block(merlin, "samples", content).mapping)
