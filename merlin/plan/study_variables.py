"""What the reserved variables stand for that are the same for all steps of a study."""

from __future__ import annotations

from pathlib import Path

from merlin.base.document.tokens import substitute
from merlin.base.files import absolute_path
from merlin.spec.expand import is_of_maestro
from merlin.spec.load import Spec
from merlin.spec.variables import RETURN_CODE_VARIABLES, provenance_stem


def runtime_variables(spec: Spec, workspace: Path, study: Path | None = None) -> dict[str, str]:
    """The variables by name.

    `study` is the workspace of the study that an extension in `workspace` belongs to: they share the timestamp, the
    output path and the dependencies.
    """
    info = workspace / "merlin_info"
    stem = provenance_stem(spec.path)
    root = Path(spec.path).absolute().parent
    study = study or workspace
    out = {
        "SPECROOT": str(root),
        "OUTPUT_PATH": str(study if is_of_maestro(spec.tree) else study.parent),
        "MERLIN_TIMESTAMP": study.name[-15:],
        "MERLIN_WORKSPACE": str(workspace),
        "MERLIN_INFO": str(info),
        "MERLIN_SPEC_ORIGINAL_TEMPLATE": str(info / f"{stem}.orig.yaml"),
        "MERLIN_SPEC_EXECUTED_RUN": str(info / f"{stem}.partial.yaml"),
        "MERLIN_SPEC_ARCHIVED_COPY": str(info / f"{stem}.expanded.yaml"),
        **{name: str(code) for name, code in RETURN_CODE_VARIABLES.items()},
    }
    dependencies = spec.document.env.dependencies
    if study != workspace:
        shared = runtime_variables(spec, study)
        names = [path.name for path in dependencies.paths] + [checkout.name for checkout in dependencies.git]
        out |= {name: shared[name] for name in names}
    else:
        for path in dependencies.paths:
            out[path.name] = str(absolute_path(substitute(path.path, out)))
        for checkout in dependencies.git:
            out[checkout.name] = str(absolute_path(substitute(checkout.path, out)) / checkout.name)
    samples = spec.document.merlin.samples
    if samples is not None:
        out["MERLIN_SAMPLE_NAMES"] = " ".join(samples.column_labels)
        out["MERLIN_SAMPLE_VECTOR"] = " ".join(f"$({label})" for label in samples.column_labels)
    return out
