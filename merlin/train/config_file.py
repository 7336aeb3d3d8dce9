"""Reading a configuration: text -> tree -> `key=value` words of the command line -> typed. All findings at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.document.findings import NOWHERE, Findings, Place, SourceText
from merlin.base.document.tree import Entry, parse, to_data
from merlin.base.document.validation import validate_as
from merlin.errors import ConfigError, Diagnostic
from merlin.shards.format.regular_file import read_bytes
from merlin.train.config import TrainConfig

MAX_FILE_BYTES = 1 << 20


class ConfigFile(Struct):
    """A configuration that fits the model, and what is needed to point at its values in later findings."""

    config: TrainConfig
    tree: Entry
    findings: Findings
    words: tuple[str, ...]

    def place(self, *path: str | int) -> Place:
        """The place of a value, or of the nearest block above it."""
        entry = self.tree.nearest(path)
        return entry.place if entry.place != NOWHERE else entry.key_place

    def where(self, *path: str | int) -> str:
        """The place of a value for people: "train.yaml:7"."""
        return f"{self.findings.file}:{self.place(*path)[0]}"

    def error(self, path: tuple[str | int, ...], message: str, hint: str = "", code: str = "value") -> None:
        """Note a finding about the value at a path."""
        self.findings.error(self.place(*path), message, hint=hint, code=code)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What stops nothing, so far."""
        found = _from_words(self.findings.sorted(), self.words)
        return tuple(item for item in found if item.severity == "warning")

    def raise_errors(self) -> None:
        """Raise ConfigError with every finding so far, if there is one."""
        if self.findings.failed:
            raise ConfigError(_from_words(self.findings.sorted(), self.words))


def load_config(path: Path, words: Sequence[str] = ()) -> ConfigFile:
    """Read a configuration, changed by `key=value` words with dotted keys.

    Raises ConfigError with every finding, each with its line and column, or the word that it is about.
    """
    return parse_config(_read(path), str(path), words, default_name=path.stem)


def parse_config(text: str, file: str, words: Sequence[str] = (), default_name: str = "train") -> ConfigFile:
    """The configuration in a YAML text; raises as `load_config`."""
    findings = Findings(file)
    tree = parse(
        SourceText(file, text),
        findings,
        what="configuration",
        blocks="data, model, …",
        needs="data and model",
    )
    config = None
    if tree is not None:
        for number, word in enumerate(words):
            tree = _with_word(tree, word, number, findings)
        if "name" not in tree.mapping:
            tree = replace(tree, content={**tree.mapping, "name": Entry(default_name)})
        given = {key: value for key, value in to_data(tree).items() if value is not None}
        config = validate_as(TrainConfig, given, tree, findings)
    if config is None or tree is None:
        raise ConfigError(_from_words(findings.sorted(), words))
    made = ConfigFile(config, tree, findings, tuple(words))
    _check(made)
    made.raise_errors()
    return made


def _read(path: Path) -> str:
    try:
        return read_bytes(path, MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except ValueError as error:
        raise ConfigError(f"{path} is larger than a megabyte: is it the right file?") from error


def _check(file: ConfigFile) -> None:
    """What needs more than one value, and neither the data nor the model."""
    training, tournament, error = file.config.training, file.config.tournament, file.error
    if training.epochs is not None and training.steps is not None:
        error(("training", "steps"), "training has both epochs and steps", "keep one of them")
    parts = tournament.ranks_per_trainer * training.accumulate
    if training.batch_size % parts:
        error(
            ("training", "batch_size"),
            f"training.batch_size {training.batch_size} cannot be divided evenly among "
            f"{tournament.ranks_per_trainer} ranks that accumulate {training.accumulate} times",
            f"e.g. {max(parts, training.batch_size // parts * parts)}",
        )
    if training.early_stopping is not None and tournament.trainers > 1 and tournament.transport != "files":
        error(
            ("training", "early_stopping"),
            "trainers of one process group end together, so none may stop early",
            "write tournament.transport: files",
        )
    if tournament.merge and tournament.strategy != "random_pairwise":
        error(
            ("tournament", "merge"),
            f"merge goes with random_pairwise, not with {tournament.strategy}",
            "leave it out",
        )
    end, given = tournament.interval_end, tournament.model_fields_set
    if end is not None and "strategy" in given and tournament.strategy != "averaging":
        error(("tournament", "interval_end"), "interval_end goes with averaging", "leave it out")
    if end is not None and "interval" in given and end > tournament.interval:
        error(
            ("tournament", "interval_end"), "interval_end is above the interval", "it is what that shrinks to"
        )
    device = training.device
    if device not in ("auto", "cpu", "cuda") and not (device.startswith("cuda:") and device[5:].isdigit()):
        error(("training", "device"), f"{device!r} is no device", "write auto, cpu, cuda or cuda:N")
    if "all" in tournament.exchange and len(tournament.exchange) > 1:
        error(("tournament", "exchange"), "exchange is all, or named parts", "leave all out, or the others")


def _with_word(tree: Entry, word: str, number: int, findings: Findings) -> Entry:
    """The tree with one `key=value` in it; its places are those of words, which `_from_words` understands."""
    place = (-1 - number, 0)
    key, equals, text = word.partition("=")
    path = key.split(".")
    if not equals or not all(path):
        findings.error(
            place, f"{word!r} is no key=value", code="word", hint="e.g. training.epochs=20 model.width=512"
        )
        return tree
    found = parse(SourceText("command line", f"value: {text}\n"), inner := Findings("command line"))
    if found is None or inner.failed:
        reason = inner.items[0].message if inner.items else "not YAML"
        findings.error(place, f"{key}: {text!r} cannot be read: {reason}", code="word")
        return tree
    return _put(tree, path, _moved(found.get("value"), place), place, findings)


def _put(tree: Entry, path: list[str], value: Entry, place: Place, findings: Findings) -> Entry:
    head, rest = path[0], path[1:]
    old = tree.get(head)
    if not rest:
        return replace(tree, content={**tree.mapping, head: value})
    if old.content is not None and not isinstance(old.content, dict):
        findings.error(place, f"{head} is no block, so it has no {'.'.join(rest)}", code="word")
        return tree
    block = old if old.mapping else Entry({}, place, place)
    return replace(tree, content={**tree.mapping, head: _put(block, rest, value, place, findings)})


def _moved(entry: Entry, place: Place) -> Entry:
    content = entry.content
    if isinstance(content, dict):
        content = {key: _moved(item, place) for key, item in content.items()}
    elif isinstance(content, list):
        content = [_moved(item, place) for item in content]
    return Entry(content, place, place, plain=entry.plain)


def _from_words(items: list[Diagnostic], words: Sequence[str]) -> list[Diagnostic]:
    """Let findings about words of the command line say which word they are about."""
    return [
        item.but(file=f"command line: {words[-1 - item.line]}", line=0, col=0) if item.line < 0 else item
        for item in items
    ]
