"""Training beside a field of a kind of a later version: all other fields can be used, and it can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_process import merlin
from later_kinds import make_later_data

from merlin.errors import ConfigError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.train import Normaliser, ShardDataset
from merlin.train.config_file import parse_config
from merlin.train.prepare import check

CONFIG = "data: {data}\nmodel: {{name: regressor}}\ntraining: {{batch_size: 8, steps: 4}}\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_later_data(tmp_path_factory.mktemp("later"))


@pytest.mark.parametrize("fields", ["", "fields: {scalars: [y]}\n"])
def test_a_configuration_that_does_not_name_it_is_valid(data, tmp_path, fields):
    (tmp_path / "train.yaml").write_text(CONFIG.format(data=data) + fields)
    assert merlin("train", tmp_path / "train.yaml", "--check") == 0


@pytest.mark.parametrize("group", ["inputs", "scalars", "images", "classes"])
def test_a_configuration_that_names_it_is_refused(data, group):
    text = CONFIG.format(data=data) + f"fields: {{{group}: [s]}}\n"
    message = f"'s' is of kind spectrum, which fields.{group} does not take"
    with pytest.raises(ConfigError, match=message):
        check(parse_config(text, "train.yaml", []))


@pytest.mark.parametrize("layout", [None, "chw"])
def test_its_values_are_delivered_as_they_are(data, layout):
    with open_shards(data) as ens:
        sample = ShardDataset(ens, layout=layout)[0]
        np.testing.assert_array_equal(sample["s"].numpy(), ens["s"][0])
        assert set(sample) == {"inputs", "y", "s"}
        assert set(ShardDataset(ens, stack_scalars=True)[0]) == {"inputs", "scalars", "s"}
        with pytest.raises(UsageError, match="no scalar 's' among the fields chosen; there are: y"):
            ShardDataset(ens, stack_scalars=["s"])


def test_other_fields_are_normalised(data):
    with open_shards(data) as ens:
        assert set(Normaliser.fit(ens, {"y": "standard"}).scalings) == {"fields/y"}
        assert set(Normaliser.fit(ens, {"scalars": "standard"}).scalings) == {"fields/y"}
