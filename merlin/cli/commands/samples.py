"""`merlin samples` generates a samples file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.base.text import count
from merlin.cli.argv import ManyCommand, ManyOption, is_assignment
from merlin.cli.options import EXISTING_FILE, FILE, json_option, out_option, parse_assignments
from merlin.cli.output import print_json
from merlin.errors import UsageError

if TYPE_CHECKING:
    from merlin.workspace.sampling import Design

METHODS = ("latin_hypercube", "sobol", "halton", "uniform", "normal", "grid")


def _is_bound(word: str) -> bool:
    return word.count(":") >= 2


@click.command(cls=ManyCommand)
@click.argument("spec", required=False, type=EXISTING_FILE)
@click.option(
    "--method", type=click.Choice(METHODS), help="How to spread the points [default: latin_hypercube]."
)
@click.option("--num", metavar="N[,N…]", help="How many; for a grid also one number per axis: 5,3.")
@click.option(
    "--bounds",
    cls=ManyOption,
    accepts=_is_bound,
    metavar="NAME:LOW:HIGH …",
    help="One per column, in order; for 'normal' NAME:MEAN:STD.",
)
@click.option("--seed", type=int, help="Same seed, same samples [default: 0].")
@click.option(
    "--vars", "assignments", cls=ManyOption, accepts=is_assignment, metavar="K=V …", help="With SPEC."
)
@out_option(FILE, "File to write: .npy, .csv, .tab or .parquet.", required=True)
@json_option
def samples(
    spec: Path | None,
    method: str | None,
    num: str | None,
    bounds: tuple[str, ...],
    seed: int | None,
    assignments: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Generate samples from --method, --num and --bounds, or as the samples block of SPEC says.

    \b
    merlin samples --method sobol --num 128 --bounds X:0:1 Y:-5:5 --out samples.npy
    merlin samples study.yaml --out samples.csv
    """
    from merlin.workspace.sampling import write_samples

    if spec is not None:
        design, labels = _from_spec(spec, parse_assignments(assignments), method, num, bounds, seed)
    else:
        design, labels = _from_options(method or "latin_hypercube", num, bounds, seed or 0)
    made = write_samples(out, design, labels)
    if as_json:
        print_json({"file": out, "num": made, "labels": labels, "method": design.method, "seed": design.seed})
    else:
        print(f"{out}: {count(made, 'sample')} of {', '.join(labels)}")


def _from_options(
    method: str, num: str | None, bounds: tuple[str, ...], seed: int
) -> tuple[Design, tuple[str, ...]]:
    from merlin.workspace.sampling import Design

    if num is None or not bounds:
        raise UsageError(
            "merlin samples needs --num and --bounds, or a SPEC; example: "
            "merlin samples --method sobol --num 128 --bounds X:0:1 Y:0:1 --out samples.npy"
        )
    limits: dict[str, tuple[float, float]] = {}
    for word in bounds:
        label, low, high = _parse_bound(word)
        if label in limits:
            raise UsageError(f"--bounds names the column {label!r} twice")
        limits[label] = (low, high)
    return Design(method=method, num=_parse_num(num, method), bounds=limits, seed=seed), tuple(limits)


def _parse_bound(word: str) -> tuple[str, float, float]:
    try:
        label, low, high = word.split(":")
        return label, float(low), float(high)
    except ValueError:
        raise UsageError(f"--bounds takes NAME:LOW:HIGH, not {word!r}; example: --bounds X:0:1") from None


def _parse_num(num: str, method: str) -> int | tuple[int, ...]:
    try:
        values = tuple(int(part) for part in num.split(","))
    except ValueError:
        raise UsageError(f"--num takes a whole number, not {num!r}") from None
    if min(values) < 1:
        raise UsageError(f"--num must be at least 1, not {num}")
    if len(values) > 1 and method != "grid":
        raise UsageError(f"--num {num}: one number per axis is for --method grid; {method} takes one number")
    return values if len(values) > 1 else values[0]


def _from_spec(
    path: Path,
    variables: dict[str, str],
    method: str | None,
    num: str | None,
    bounds: tuple[str, ...],
    seed: int | None,
) -> tuple[Design, tuple[str, ...]]:
    from merlin.spec.load import load_spec
    from merlin.workspace.sampling import Design

    if method or num or bounds:
        raise UsageError("SPEC already says method, num and bounds; give either SPEC or those options")
    block = load_spec(path, variables=variables, allow_undefined=True).document.merlin.samples
    if block is None or block.generate is None or block.generate.method is None:
        raise UsageError(f"{path} has no samples.generate with a method; give --method, --num and --bounds")
    made = block.generate
    assert made.method is not None and made.num is not None
    chosen = (made.seed or 0) if seed is None else seed
    design = Design(method=made.method, num=made.num, bounds=made.bounds, seed=chosen)
    return design, tuple(block.column_labels) or tuple(made.bounds)
