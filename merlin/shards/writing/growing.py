"""Data sets that grow: each study adds its part, the one they began with and then its extensions in order.

A part is what a study's rows put into the manifest, as if they were the whole data set; the manifest is the parts
merged. A manifest of several parts lists under `parts` what merging would lose, so that each can be taken out
again and replaced when its study runs again. Parts are merged in the order of their rows, and only as far as their
rows follow each other: while a study is not finished, the parts behind it wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.files import remove_leftovers, replace_link, replacing, write_text
from merlin.base.locks import locked
from merlin.errors import NotADataSetError, ShardError
from merlin.plan.tasks import Outcome
from merlin.shards.format.digest import combine, digest_bytes
from merlin.shards.format.manifest_file import (
    NAME,
    VIRTUAL_NAME,
    manifest_text,
    read_manifest,
    read_manifest_json,
)
from merlin.shards.format.statistics import Statistics
from merlin.shards.format.statistics import merge as merge_statistics

if TYPE_CHECKING:
    from merlin.plan.plan import StepInstance
    from merlin.shards.format.manifest_file import DataSet, SourceInfo
    from merlin.workspace.directory import Workspace

Part = dict[str, Any]
MakePart = Callable[["Workspace", "StepInstance"], Part]
WriteVirtual = Callable[[Path, Part], None]

LOCK_NAME = "data_sets.lock"

_STATISTICS = ("statistics", "lengths")  # of fields and columns
_JOINED = ("sources", "failures", "shards")  # lists of entries that tell which part they belong to
_OWN = ("study", "counts", "splits", "filters", "fields", "columns", "content_digest")  # merged one by one


def study_workspace(data: DataSet) -> Path:
    """The workspace of the study that the data set began with: the aggregate's id is its path below."""
    return data.directory.parents[len(Path(data.aggregate).parts) - 1]


def source_workspace(data: DataSet, source: SourceInfo) -> Path:
    """The workspace in which a source's tasks ran, and in which they are run again."""
    return study_workspace(data) / source.workspace


def require_members(directory: Path, studies: Sequence[Workspace]) -> None:
    """Raise ShardError if the data set in `directory` has rows of an extension that is gone.

    Its rows and shards would be given out again. Without a manifest there is nothing to lose.
    """
    if not (directory / NAME).is_file():
        return
    there = {study.member for study in studies}
    gone = {source.workspace for source in read_manifest(directory).sources} - there
    if gone:
        raise ShardError(
            f"{directory} has rows of {', '.join(sorted(gone))}, which is gone; put it back, or the study cannot grow"
        )


# ------------------------------------------------------------------------------- merging, pure


def merge(parts: Sequence[Part]) -> Part:
    """The manifest of several parts, whose rows follow each other; ShardError if they do not fit together."""
    if len(parts) == 1:
        return dict(parts[0])
    first = parts[0]
    for part in parts[1:]:
        _require_same(first, part)
    shards = [entry for part in parts for entry in part["shards"]]
    merged: Part = {
        **first,
        "study": {**first["study"], "finished": max(part["study"]["finished"] for part in parts)},
        "counts": _summed([part["counts"] for part in parts]),
        "splits": {**first["splits"], "counts": _summed([part["splits"]["counts"] for part in parts])},
        "fields": _with_statistics([part["fields"] for part in parts]),
        "columns": _with_statistics([part["columns"] for part in parts]),
        "sources": [entry for part in parts for entry in part["sources"]],
        "failures": sorted(
            (entry for part in parts for entry in part["failures"]), key=lambda entry: -entry["num"]
        ),
        "shards": shards,
        "content_digest": combine([entry["content_digest"] for entry in shards]),
        "parts": [_remembered(part) for part in parts],
    }
    if "filters" in first:
        merged["filters"] = _joined_filters([part["filters"] for part in parts])
    return merged


def split(data: Part) -> list[Part]:
    """The parts that a manifest was merged from."""
    if "parts" not in data:
        return [{key: value for key, value in data.items() if key != "virtual"}]
    return [_part(data, known) for known in data["parts"]]


def rows_of(part: Part) -> tuple[int, int]:
    """The planned rows [lo, hi) of a part."""
    lo = part["sources"][0]["first_row"]
    return lo, lo + part["counts"]["planned"]


def _part(data: Part, known: Part) -> Part:
    lo, hi = known["rows"]
    shards = [entry for entry in data["shards"] if lo <= entry["lo"] < hi]
    mine: Part = {
        **{key: value for key, value in data.items() if key not in ("parts", "virtual")},
        **{key: known[key] for key in ("study", "counts", "filters") if key in known},
        "splits": {**data["splits"], "counts": known["splits"]},
        "sources": [e for e in data["sources"] if e["workspace"] == known["workspace"]],
        "failures": [e for e in data["failures"] if e["workspace"] == known["workspace"]],
        "shards": shards,
        "content_digest": combine([entry["content_digest"] for entry in shards]),
    }
    for group in ("fields", "columns"):
        mine[group] = [{**entry, **kept} for entry, kept in zip(data[group], known[group], strict=True)]
    return mine


def _remembered(part: Part) -> Part:
    """What of a part cannot be told from the merged manifest."""
    out: Part = {
        "workspace": part["sources"][0]["workspace"],
        "rows": list(rows_of(part)),
        **{key: part[key] for key in ("study", "counts", "filters") if key in part},
        "splits": part["splits"]["counts"],
        **{group: [_kept(entry) for entry in part[group]] for group in ("fields", "columns")},
    }
    return out


def _kept(entry: Part) -> Part:
    """The statistics of a field or column."""
    return {key: entry[key] for key in _STATISTICS if key in entry}


def _require_same(first: Part, other: Part) -> None:
    """Everything that is not the sum of the parts is the same in all."""
    lo, hi = rows_of(other)
    for key in first.keys() | other.keys():
        if key in _OWN or key in _JOINED:
            continue
        if first.get(key) != other.get(key):
            raise ShardError(
                f"rows {lo}-{hi - 1} do not fit the data set: their {key} is {other.get(key)!r}, "
                f"that of the rows before is {first.get(key)!r}"
            )
    for group in ("fields", "columns"):
        ours, theirs = _schema(first[group]), _schema(other[group])
        for name in ours.keys() | theirs.keys():
            if ours.get(name) != theirs.get(name):
                raise ShardError(
                    f"rows {lo}-{hi - 1} do not fit the data set: '{name}' is {theirs.get(name, 'not there')}, "
                    f"in the rows before it is {ours.get(name, 'not there')}"
                )


def _schema(entries: Sequence[Part]) -> dict[str, Part]:
    """What must not change from part to part, by name."""
    left_out = (*_STATISTICS, "description", "finite")  # the last is not in manifests of earlier versions
    return {_name(entry): {k: v for k, v in entry.items() if k not in left_out} for entry in entries}


def _name(entry: Part) -> str:
    """Of a column its path, of a field its name."""
    return str(entry["path"] if "path" in entry else entry["name"])


def _with_statistics(groups: Sequence[Sequence[Part]]) -> list[Part]:
    """The entries of the first part, with the statistics of all."""
    named = [{_name(e): e for e in entries} for entries in groups]
    out = []
    for entry in groups[0]:
        same = [entries[_name(entry)] for entries in named]
        out.append({**entry, **{key: _merged([e[key] for e in same]) for key in _STATISTICS if key in entry}})
    return out


def _merged(found: Sequence[Any]) -> Any:
    merged = merge_statistics([Statistics.from_json(entry) if entry else None for entry in found])
    return None if merged is None else merged.to_json()


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {key: sum(each[key] for each in counts) for key in counts[0]}


def _joined_filters(groups: Sequence[Sequence[Part]]) -> list[Part]:
    found: dict[str, Part] = {}
    for entry in (entry for entries in groups for entry in entries):
        known = found.setdefault(entry["expression"], {**entry, "num": 0, "rows": []})
        known["num"] += entry["num"]
        known["rows"] = [*known["rows"], *entry["rows"]]
    return list(found.values())


# ------------------------------------------------------------------------------- on disk


def publish(
    workspace: Workspace,
    aggregate: StepInstance,
    part: Part,
    make_part: MakePart,
    write_virtual: WriteVirtual,
) -> bool:
    """Put a study's part into the manifest of its data set, in place of what it had there before.

    A reader finds the data set as it was or as it is now. False if a study before this one is not finished: then its
    manifest step will take this part in.
    """
    directory = workspace.data_set_dir(aggregate)
    part = json.loads(json.dumps(part))  # lists where there may be tuples, as in parts that were stored
    with _alone(workspace):
        parts = [part, *_others(workspace, aggregate, part, make_part).values()]
        fitting: list[Part] = []
        for each in sorted(parts, key=rows_of):
            if rows_of(each)[0] == (rows_of(fitting[-1])[1] if fitting else 0):
                fitting.append(each)
        if not fitting:
            return False
        write_manifest_file(directory, merge(fitting), write_virtual)
    return any(each is part for each in fitting)


def _number(part: Part) -> str:
    return str(part["sources"][0]["workspace"])


def _others(
    workspace: Workspace, aggregate: StepInstance, part: Part, make_part: MakePart
) -> dict[str, Part]:
    """The parts of other studies: those in the manifest, and those that it does not have although they are done."""
    from merlin.workspace.directory import members

    try:
        known = split(read_manifest_json(workspace.data_set_dir(aggregate) / NAME))
    except ShardError:  # there is none, or it is damaged
        known = []
    others = {_number(each): each for each in known if _number(each) != _number(part)}
    for member in members(workspace):
        if member.member in others or member.path == workspace.path:
            continue
        instance = _finished_manifest(member, aggregate.id)
        if instance is not None:
            others[member.member] = json.loads(json.dumps(make_part(member, instance)))
    return others


def _finished_manifest(member: Workspace, aggregate_id: str) -> StepInstance | None:
    """The manifest instance of a study over this aggregate, if its task has ended ok."""
    from merlin.ledger.replay import replay
    from merlin.plan.plan import StepKind

    for instance in member.plan.instances:
        if instance.kind is StepKind.MANIFEST and instance.finishes == aggregate_id:
            ended = replay(member.ledger_dir, member.plan).outcomes[instance.id][0]
            return instance if ended == Outcome.OK else None
    return None


@contextmanager
def _alone(workspace: Workspace) -> Iterator[None]:
    """One study at a time changes the data sets of a workspace; others wait. The kernel forgets killed ones."""
    from merlin.workspace.directory import INFO_DIR

    with locked(workspace.root / INFO_DIR / LOCK_NAME, wait=True):
        yield


def write_manifest_file(directory: Path, data: Part, write_virtual: WriteVirtual) -> None:
    """Replace the manifest, and what it vouches for, in one rename.

    A manifest that is replaced keeps its own file of the virtual data set until then, so the new one gets another
    name; ``ensemble.h5`` leads to the one that counts.
    """
    for mine in (NAME, VIRTUAL_NAME):  # a writer that was killed
        remove_leftovers(directory, mine)
    name = _free_name(directory)
    path = directory / name
    write_virtual(path, data)
    content = path.read_bytes()
    virtual = {"file": name, "size_bytes": len(content), "digest": digest_bytes(content)}
    if name != VIRTUAL_NAME:
        virtual["before"] = _digest_of(directory / VIRTUAL_NAME)
    write_text(directory / NAME, manifest_text({**data, "virtual": virtual}))
    if name != VIRTUAL_NAME:
        _lead(directory / VIRTUAL_NAME, path)
    for old in directory.glob(_generation("*")):
        if old.name != name:
            old.unlink(missing_ok=True)


def _digest_of(path: Path) -> str:
    try:
        return digest_bytes(path.read_bytes())
    except OSError:
        return ""


def _generation(number: int | str) -> str:
    stem, _, suffix = VIRTUAL_NAME.rpartition(".")
    return f"{stem}_{number}.{suffix}"


def _free_name(directory: Path) -> str:
    """`ensemble.h5` for the first manifest; then a name that the manifest of now does not use."""
    try:
        used = read_manifest_json(directory / NAME)["virtual"]["file"]
    except NotADataSetError:
        return VIRTUAL_NAME
    except (ShardError, KeyError):
        used = ""  # damaged: it is replaced
    number = 1
    while _generation(number) == used:
        number += 1
    return _generation(number)


def _lead(link: Path, target: Path) -> None:
    """Make `link` stand for `target` in one rename: a symbolic link, or a copy where there are none."""
    try:
        replace_link(link, target.name)
    except OSError:
        with replacing(link) as copy:
            copy.write_bytes(target.read_bytes())
