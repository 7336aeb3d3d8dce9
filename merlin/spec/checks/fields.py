"""Checks that each field of an aggregate can be what it says, and comes from somewhere."""

from __future__ import annotations

from pathlib import PurePath

from msgspec import Struct

from merlin.base.compression import CODECS
from merlin.base.document.findings import Findings, allowed
from merlin.base.document.scalars import Problem, to_bool, to_int
from merlin.base.document.tree import MISSING, Entry, to_data
from merlin.base.field import channel_axis
from merlin.base.kinds import DTYPES, KINDS, MANTISSA_BITS, OUTPUT_SUFFIXES, ROLES, SampleKind

_OF_MEMBERS = (
    *("layout", "channels", "axes", "shape", "key", "path", "column", "regex", "output", "expression"),
    "keep_bits",
)
_SOURCES = ("file", "output", "expression")


class FieldChecker(Struct, frozen=True):
    """Checks the fields of one aggregate step."""

    source: str  # the step that it collects from
    source_kind: str  # cmd, function, or "" if it is not known
    findings: Findings
    codec: str = ""  # of the aggregate

    def check(self, name: str, field: Entry) -> None:
        if "/" in name or name in (".", "..", ""):
            self._error(field.key_place, f"{name!r} cannot name a field", name, code="bad-name")
        kind = _kind_of(field)
        if kind is not None and kind.has_members:
            self._graph(name, field)
            return
        if not field.get("members").is_null:
            message = f"field {name} has members, which only a graph has"
            self._error(field.get("members").key_place, message, "members", "kind: graph", "graph")
        self._origin(name, field)
        self._dtype(name, field)
        self._shape(name, field)
        self._layout(name, field)
        self._storage(name, field, dtype_of(field))

    def check_form(self, name: str, field: Entry, role: str = "") -> None:
        """Check only that kind, shape, axes, layout and channels agree; `role` is that of a graph's member."""
        if role:
            self._member_form(name, role, field, field.get("dtype").text)
        else:
            self._shape(name, field)
            self._layout(name, field)

    def _error(self, place: tuple[int, int], message: str, text: str, hint: str = "", code: str = "") -> None:
        self.findings.error(place, message, text=text, hint=hint, code=code)

    # ------------------------------------------------------------------ origin

    def _origin(self, name: str, field: Entry, inherited: Entry = MISSING) -> None:
        given = [word for word in _SOURCES if not field.get(word).is_null]
        regex = field.get("regex")
        key = next((field.get(word) for word in ("key", "path", "column") if word in field.mapping), MISSING)
        if len(given) > 1:
            hint = "file is for cmd steps, output for function steps, expression for neither"
            message = f"field {name} has both {given[0]} and {given[1]}"
            self._error(field.get(given[1]).key_place, message, given[1], hint, "field-source")
            return
        file = field.get("file") if given else inherited
        if self.source_kind == "cmd" and file.is_null and given != ["expression"]:
            message = f"field {name} does not say which file of step {self.source!r} holds it"
            hint = "e.g. file: out.json with key: energy"
            self._error(field.key_place, message, name, hint, "field-source")
        elif self.source_kind == "function" and not file.is_null:
            message = (
                f"field {name} names a file, but {self.source!r} is a function step, which returns arrays"
            )
            self._error(file.place, message, "file", f"e.g. output: {name}", "field-source")
        if file.text.startswith("/") or ".." in file.text.split("/"):
            message = f"field {name}: {file.text} is not inside the directory of the task"
            hint = "let the step copy it there, and name it without .. and without a leading /"
            self._error(file.place, message, file.text, hint, "field-source")
        for entry, word in ((regex, "regex"), (key, "key")):
            if not entry.is_null and file.is_null:
                message = f"field {name}: {word} needs a file to look in"
                self._error(entry.key_place, message, word, code="field-source")
        if not key.is_null and not regex.is_null:
            message = f"field {name} has both regex and a key"
            hint = "regex is for text files; key for JSON, .npz, CSV and HDF5"
            self._error(regex.key_place, message, "regex", hint, "field-source")
        elif regex.is_null and not _is_text(field):
            self._file_type(name, file)

    def _file_type(self, name: str, file: Entry) -> None:
        """Note a file of a type that values can only be found in by a regex."""
        suffix = PurePath(file.text).suffix.lower()
        is_known_later = any(mark in suffix for mark in "$*?[")
        if file.text and not is_known_later and suffix not in OUTPUT_SUFFIXES:
            what = f"of type '{suffix}'" if suffix else "without a suffix"
            hint = f"give a regex whose first group is the value; without one: {' '.join(OUTPUT_SUFFIXES)}"
            self._error(
                file.place, f"field {name}: a file {what} needs a regex", file.text, hint, "field-source"
            )

    # ------------------------------------------------------------- dtype, shape

    def _dtype(self, name: str, field: Entry) -> None:
        dtype = field.get("dtype")
        if dtype.text and dtype.text not in DTYPES:
            message = f"field {name}: {dtype.text!r} is no type of a field"
            self._error(dtype.place, message, dtype.text, allowed(dtype.text, DTYPES, "types"), "dtype")

    def _shape(self, name: str, field: Entry) -> None:
        shape = field.get("shape")
        ragged, num = shape_of(field)
        kind = KINDS.get(field.get("kind").text or ("ragged" if ragged else "scalar"))
        if kind is None or not kind.axes:
            return  # the model reports it, or the members of a graph have the shapes
        place = field.key_place if shape.is_null else shape.place
        if kind.is_ragged and not ragged:
            message, hint = 'is ragged, so its shape has to begin with "*"', f"e.g. shape: {kind.example}"
            self._error(place, f"field {name} {message}", name, hint, "shape")
        elif kind.is_text and ragged:
            hint = "leave shape out, and join the texts"
            self._error(place, f"field {name}: a text cannot be ragged", name, hint, "shape")
        elif num not in kind.axes:
            hint = f"e.g. shape: {kind.example}" if kind.example else f"leave shape out for {kind.name}"
            what = "an item has" if ragged else "its shape has"
            message = f"field {name} is of kind {kind.name}, and {what} {num} axes"
            self._error(place, message, name, hint, "shape")
        self._axes(f"field {name}", name, field)

    def _axes(self, what: str, name: str, field: Entry) -> None:
        axes, (ragged, num) = field.get("axes"), shape_of(field)
        if not axes.is_null and len(axes.items) != num + ragged:
            message = f"{what} names {len(axes.items)} axes, but its shape has {num + ragged}"
            self._error(axes.place, message, name, code="shape")

    def _layout(self, name: str, field: Entry) -> None:
        kind = _kind_of(field)
        layout, channels = field.get("layout"), field.get("channels")
        if kind is None or not kind.spatial:
            entry, word = (channels, "channels") if layout.is_null else (layout, "layout")
            if not entry.is_null:
                message = f"field {name}: {word} is for images and volumes"
                self._error(entry.key_place, message, word, "name its axes with axes: [...]", "layout")
            return
        _, num = shape_of(field)
        letters, spatial = layout.text, kind.spatial
        if letters and not kind.has_layout(letters):
            message = f"field {name}: {letters!r} is no layout for kind {kind.name}"
            hint = f"each letter of {spatial} once, and c if it has channels, e.g. {spatial}c or c{spatial}"
            self._error(layout.place, message, letters, hint, "layout")
        elif letters and len(letters) != num:
            message = f"field {name}: the layout {letters} has {len(letters)} axes, its shape has {num}"
            self._error(layout.place, message, letters, code="layout")
        elif not channels.is_null:
            self._channels(name, field, kind)

    def _channels(self, name: str, field: Entry, kind: SampleKind) -> None:
        channels, num = field.get("channels"), len(field.get("channels").items)
        names = [item.text for item in channels.items]
        axes, letters = [axis.text for axis in field.get("axes").items], field.get("layout").text
        ragged, num_axes = shape_of(field)
        at = channel_axis(kind.name, num_axes, layout=letters, axes=axes, ragged=ragged)
        if at is None or num_axes <= len(kind.spatial):
            message = f"field {name} names {num} channels, but its shape has no axis for them"
            hint = f"e.g. layout: {letters or kind.spatial}c"
            self._error(channels.place, message, "channels", hint, "layout")
            return
        sizes = field.get("shape").items[ragged:]
        if at < len(sizes) and sizes[at].text.isdigit() and int(sizes[at].text) != num:
            message = f"field {name} names {num} channels, but its shape has {sizes[at].text}"
            self._error(channels.place, message, "channels", code="layout")
        if len(set(names)) != len(names):
            self._error(channels.place, f"field {name} names a channel twice", "channels", code="layout")

    # ----------------------------------------------------------------- storage

    def _storage(self, name: str, field: Entry, dtype: str, inherited_codec: str = "") -> None:
        bits, is_text = field.get("keep_bits"), _is_text(field)
        if not bits.is_null and dtype in DTYPES:
            has, num = 0 if is_text else MANTISSA_BITS.get(dtype, 0), _number(bits)
            if not has:
                message = f"field {name}: keep_bits is for floats, not for {'text' if is_text else dtype}"
                self._error(bits.key_place, message, "keep_bits", code="keep-bits")
            elif num is not None and num > has:
                message = f"field {name}: {dtype} has {has} bits of mantissa, not {num}"
                self._error(bits.place, message, bits.text, "leave keep_bits out to keep all", "keep-bits")
        if is_text:
            _warn_of_no_compression(f"field {name}", field, "text is stored as it is", self.findings)
        else:
            check_compression(f"field {name}", field, inherited_codec or self.codec, self.findings)

    # ------------------------------------------------------------------ graphs

    def _graph(self, name: str, field: Entry) -> None:
        members = field.get("members")
        for word in _OF_MEMBERS:
            entry = field.get(word)
            if not entry.is_null:
                message, hint = f"graph {name}: {word} belongs to its members", f"nodes: {{{word}: …}}"
                self._error(entry.key_place, message, word, f"e.g. members: {{{hint}}}", "graph")
        if not members.mapping:
            hint = 'e.g. members: {nodes: {shape: ["*", 8]}, edges: }'
            self._error(field.key_place, f"graph {name} has no members", name, hint, "graph")
            return
        if not {"nodes", "positions"} & members.mapping.keys():
            message = f"graph {name} has neither nodes nor positions"
            self._error(members.key_place, message, name, code="graph")
        if "edge_features" in members.mapping and "edges" not in members.mapping:
            place, message = members.get("edge_features").key_place, "has edge_features, and no edges"
            self._error(place, f"graph {name} {message}", "edge_features", code="graph")
        self._dtype(name, field)
        check_compression(f"graph {name}", field, self.codec, self.findings)
        for role, member in members.mapping.items():
            if role in ROLES:  # the model refuses others
                self._member(f"{name}.{role}", role, member, field)

    def _member(self, name: str, role: str, member: Entry, graph: Entry) -> None:
        self._origin(name, member, graph.get("file"))
        self._dtype(name, member)
        dtype = dtype_of(member, role, graph)
        self._storage(name, member, dtype, graph.get("compression").text)
        self._member_form(name, role, member, dtype)

    def _member_form(self, name: str, role: str, member: Entry, dtype: str) -> None:
        ragged, num = shape_of(member)
        shape = member.get("shape")
        place = shape.place if not shape.is_null else member.key_place
        if role == "edges":
            if not shape.is_null and not (ragged and num == 1 and shape.items[1].text == "2"):
                hint = "one row per edge: source and target; transpose [2, *]"
                self._error(place, f'{name}: the shape of edges is ["*", 2]', name, hint, "shape")
            if dtype in DTYPES and "int" not in dtype:
                message = f"{name}: edges are whole numbers"
                self._error(member.get("dtype").place, message, dtype, "int64", "dtype")
        elif role == "targets":
            if ragged:
                hint = "what belongs to each node is in node_targets"
                self._error(place, f"{name}: the targets of a graph have a fixed shape", name, hint, "shape")
        elif not ragged or num > 1:
            hint = f'e.g. shape: ["*", {3 if role == "positions" else 8}]'
            message = f'{name}: its shape has to be ["*"] or ["*", n], a row for each {ROLES[role].item}'
            self._error(place, message, name, hint, "shape")
        self._axes(name, name, member)


def _kind_of(field: Entry) -> SampleKind | None:
    """The kind that a field names; None for an unknown one, which the model reports."""
    return KINDS.get(field.get("kind").text or "scalar")


def _is_text(field: Entry) -> bool:
    kind = _kind_of(field)
    return kind is not None and kind.is_text


def dtype_of(field: Entry, role: str = "", graph: Entry = MISSING) -> str:
    """The dtype of a field, or of a member of a graph, which says its own, or has that of its role or graph."""
    usual = ROLES[role].dtype if role in ROLES else ""
    return field.get("dtype").text or usual or graph.get("dtype").text or "float64"


def shape_of(field: Entry) -> tuple[bool, int]:
    """Return whether the shape begins with any number of items, and how many other axes it has."""
    items = field.get("shape").items
    ragged = bool(items) and (items[0].is_null or items[0].text == "*")
    return ragged, len(items) - ragged


def check_compression(what: str, block: Entry, inherited: str, findings: Findings) -> None:
    """Check that shuffle and level have a codec to be for, and that this codec has the level."""
    if (block.get("compression").text or inherited) in ("", "none"):
        _warn_of_no_compression(what, block, "nothing compresses it", findings)
    check_level(what, block, findings)


def _warn_of_no_compression(what: str, block: Entry, why: str, findings: Findings) -> None:
    for word in ("compression", "shuffle", "level"):
        entry = block.get(word)
        if entry.text not in ("", "none"):
            hint = "" if word == "compression" else "e.g. compression: zstd"
            message = f"{what}: {word} does nothing, as {why}"
            findings.warning(entry.key_place, message, text=word, hint=hint, code="compression")


def check_level(what: str, block: Entry, findings: Findings) -> None:
    """Check that the codec has the level of compression that the block asks for."""
    level, codec = block.get("level"), CODECS.get(block.get("compression").text)
    num = _number(level)
    if num is not None and codec is not None and num not in codec.levels:
        message = f"{what}: {codec.name} has levels {codec.levels[0]} to {codec.levels[-1]}, not {num}"
        findings.error(level.place, message, text=level.text, code="level")


def _number(entry: Entry) -> int | None:
    try:
        return None if entry.is_null else to_int(to_data(entry))
    except Problem:
        return None  # the model reports it


def is_true(entry: Entry) -> bool:
    """Return whether a flag is set; a malformed one is not, and the model reports it."""
    try:
        return not entry.is_null and to_bool(to_data(entry))
    except Problem:
        return False
