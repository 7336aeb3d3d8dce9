"""One field: what follows from its kind, shape, layout and axes; kinds and codecs are known from their registries."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.base.compression import CODECS, Compression
from merlin.base.field import Field, dtype_of
from merlin.base.kinds import CHARTS, KINDS, ROLES, kind_of_shape


@pytest.mark.parametrize(
    ("field", "axis"),
    [
        (Field(name="y"), None),
        (Field(name="y", kind="series", shape=(8,)), None),
        (Field(name="y", kind="series", shape=(8, 2)), None),
        (Field(name="y", kind="series", shape=(2, 8), axes=("channel", "t")), 0),
        (Field(name="y", kind="image", shape=(8, 8)), None),
        (Field(name="y", kind="image", shape=(8, 8, 3)), 2),
        (Field(name="y", kind="image", shape=(3, 8, 8), layout="chw"), 0),
        (Field(name="y", kind="image", shape=(8, 8), layout="hw"), None),
        (Field(name="y", kind="image", shape=(3, 8, 8), axes=("channel", "y", "x")), 0),
        (Field(name="y", kind="volume", shape=(4, 4, 4)), None),
        (Field(name="y", kind="volume", shape=(4, 4, 4, 2)), 3),
        (Field(name="y", kind="ragged", shape=(3,), ragged=True), 0),
        (Field(name="y", kind="ragged", shape=(3, 3), ragged=True), None),
        (Field(name="y", kind="image", shape=(8, 8, 3), ragged=True, axes=("item", "y", "x", "channel")), 2),
        (Field(name="y", kind="of a later version", shape=(8, 8, 3)), None),
    ],
)
def test_one_place_says_which_axis_the_channels_are(field, axis):
    assert field.channel_axis == axis


def test_the_axis_of_channels_can_be_counted_from_the_end():
    assert Field(name="y", kind="image", shape=(3, 8, 8), layout="chw").channel_axis_from_end == -3
    assert Field(name="y", kind="ragged", shape=(3,), ragged=True).channel_axis_from_end == -1
    assert Field(name="y", kind="series", shape=(8,)).channel_axis_from_end is None


def test_a_kind_of_a_later_version_can_be_read_and_not_interpreted():
    later = Field(name="y", kind="mesh", shape=(8, 3), dtype="float32")
    assert (later.value_dtype, later.full_layout, later.is_text) == (np.dtype("<f4"), "", False)
    kind = later.sample_kind
    assert (kind.name, kind.chart, kind.spatial, len(kind.axes)) == ("mesh", "", "", 0)
    assert not (kind.is_number or kind.is_picture or kind.is_text or kind.is_ragged or kind.has_members)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((), "scalar"),
        ((8,), "series"),
        ((8, 3), "image"),
        ((8, 8, 4), "image"),
        ((4, 8, 8), "image"),
        ((8, 8, 5), "volume"),
        ((8, 8, 8, 8), "volume"),
    ],
)
def test_numbers_have_the_kind_that_their_shape_suggests(shape, kind):
    assert kind_of_shape(shape) == KINDS[kind]


def test_five_axes_suggest_no_kind():
    assert kind_of_shape((2,) * 5) is None


def test_charts_are_those_of_the_kinds_between_inputs_and_numbers_of_items():
    assert CHARTS == ("inputs", "scalars", "series", "images", "volumes", "graphs", "ragged")


def test_spatial_axes_come_in_the_order_depth_height_width():
    assert Field(name="y", kind="volume", shape=(2, 4, 5, 6), layout="cwhd").spatial_axes == (3, 2, 1)
    assert Field(name="y", kind="image", shape=(8, 8, 3)).spatial_axes == (0, 1)
    assert Field(name="y", kind="series", shape=(8,)).spatial_axes == ()


def test_a_field_knows_where_it_is_stored_and_as_what():
    member = Field(name="mol.nodes", graph="mol", role="nodes", ragged=True, shape=(3,), dtype="float32")
    assert (member.path, member.ndim, member.item_bytes) == ("fields/mol/nodes", 2, 12)
    assert Field(name="y").path == "fields/y"
    assert Field(name="y", kind="text").value_dtype == np.dtype(object) == dtype_of("text")
    assert Field(name="y", dtype="int16").value_dtype.str == "<i2"
    assert Field(name="y", shape=(2,)).column_names == ("y[0]", "y[1]")
    assert Field(name="y").column_names == ("y",)


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_has_a_usual_level_and_can_undo_what_it_does(name):
    codec = CODECS[name]
    assert codec.name == name
    assert codec.usual_level in codec.levels
    for shuffle in ("none", "byte", "bit"):
        last = Compression(name, shuffle).filters()[-1]
        assert last.number in codec.undo or shuffle == "bit"


def test_every_kind_with_a_shape_has_an_example_of_one():
    for kind in KINDS.values():
        assert bool(kind.example) == (len(kind.axes) > 1)
    assert all(role.item in ("node", "edge", "") for role in ROLES.values())
