from __future__ import annotations

import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from merlin.base.document.findings import Findings, SourceText
from merlin.base.document.tree import parse, to_data
from merlin.config.edit import _set, template, update_block
from merlin.config.load import load_config
from merlin.errors import ConfigError


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_the_template_is_right_but_for_its_placeholders(tmp_path, broker):
    path = tmp_path / "app.yaml"
    path.write_text(template(broker))
    with pytest.raises(ConfigError) as caught:
        load_config(path, {"HOME": str(tmp_path)})
    assert caught.value.diagnostics
    assert all("placeholder" in d.message for d in caught.value.diagnostics)
    (tmp_path / "pw").write_text("x")
    (tmp_path / "pw").chmod(0o600)
    values = {"password": str(tmp_path / "pw"), "server": "h", "username": "joe"}
    update_block(path, "broker", values | ({"vhost": "v"} if broker == "rabbitmq" else {}))
    update_block(path, "results_backend", values)
    config = load_config(path, {"HOME": str(tmp_path)})
    assert config.warnings == ()
    assert config.broker.is_redis == (broker == "redis")


def test_a_change_leaves_comments_and_other_lines_alone(tmp_path):
    path = tmp_path / "app.yaml"
    path.write_text(
        "# top\nbroker:\n  name: redis # which\n  server:\n  port: 1   # old\n\n# between\ncelery:\n  overrides:\n"
    )
    update_block(path, "broker", {"port": 22, "server": "a host", "db_num": 4})
    assert path.read_text() == (
        '# top\nbroker:\n  name: redis # which\n  server: "a host"\n  port: 22   # old\n  db_num: 4\n\n'
        "# between\ncelery:\n  overrides:\n"
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["app.yaml"]


@pytest.mark.parametrize(
    ("names", "values", "port", "keys"),
    [
        (("rabbitmq", "rediss"), {}, 6379, []),
        (("rabbitmq", "rediss"), {"port": 7000, "db_num": 2}, 7000, ["db_num"]),
        (("redis", "amqp"), {"vhost": "v"}, 5672, ["vhost"]),
        (("rabbitmq", "amqp"), {}, 5672, ["vhost"]),
    ],
)
def test_another_kind_of_server_has_its_own_port_and_keys(tmp_path, names, values, port, keys):
    path = tmp_path / "app.yaml"
    text = template("redis" if names[0] == "redis" else "rabbitmq")
    path.write_text(text.replace("  port:", "  # mine\n    port:", 1))
    given = {"server": "h", "username": "u", "password": "secret"}
    update_block(path, "results_backend", given)
    update_block(path, "broker", {"name": names[1], **given, **values})
    block = path.read_text().partition("results_backend:")[0]
    assert f"port: {port}\n" in block and "    # mine\n" in block
    assert [key for key in ("vhost", "db_num") if f"{key}:" in block] == keys
    assert ("Redis over TLS" in block, "RabbitMQ over TLS" in block) == (
        "redis" in names[1],
        "amqp" in names[1],
    )


def test_a_block_that_is_merged_stays_as_it_is(tmp_path):
    path = tmp_path / "app.yaml"
    backend = "results_backend: &r\n  name: redis\n  port: 6379\n  db_num: 0\n"
    path.write_text(backend + "broker:\n  <<: *r\n  server: h\ncelery:\n")
    update_block(path, "broker", {"name": "rabbitmq"})
    assert path.read_text().startswith(backend)
    assert path.read_text().endswith("  server: h\n  name: rabbitmq\n  port: 5671\ncelery:\n")


@pytest.mark.parametrize("text", ["celery:\n    overrides:\n", "broker:\ncelery:\n    overrides:\n"])
def test_a_block_that_is_missing_or_empty_is_made(tmp_path, text):
    path = tmp_path / "app.yaml"
    path.write_text(text)
    update_block(path, "broker", {"name": "redis", "server": "h"})
    assert load_config(path, {"HOME": str(tmp_path)}).broker.host == "h"


@pytest.mark.parametrize(
    "text", ["broker: {name: redis}\n", "broker: {}\n", "broker:\n  server: [a]\n", "broker: [\n"]
)
def test_what_cannot_be_changed_safely_is_left_alone(tmp_path, text):
    path = tmp_path / "app.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"app\.yaml"):
        update_block(path, "broker", {"server": "h"})
    assert path.read_text() == text


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ConfigError, match="merlin config create"):
        update_block(tmp_path / "app.yaml", "broker", {"server": "h"})


words = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


@example(values={"name": "\ue000\ue001"})
@given(
    st.dictionaries(
        st.sampled_from(["name", "server", "vhost", "new"]), words | st.integers(0, 10**6), min_size=1
    )
)
def test_any_value_is_read_back_as_it_was_given(tmp_path_factory, values):
    text = "broker:\n    name: redis  # c\n    server: 'h'\n    vhost: \"x\"\ncelery:\n    overrides:\n"
    path = tmp_path_factory.getbasetemp() / "app.yaml"
    for key, value in values.items():
        text = _set(text, "broker", key, value, path)
    tree = parse(SourceText("f", text), Findings("f"))
    assert tree is not None
    read = to_data(tree.get("broker"))
    assert {key: str(read[key]) for key in values} == {key: str(value) for key, value in values.items()}
    assert list(tree.mapping) == ["broker", "celery"]
