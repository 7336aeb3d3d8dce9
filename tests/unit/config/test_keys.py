from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from merlin.config import keys
from merlin.config.keys import make_key, read_key
from merlin.config.load import find_config
from merlin.errors import ConfigError


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "home" / ".merlin" / "merlin.key"
    key = make_key(path)
    assert len(key) == 32
    assert make_key(path) == read_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["merlin.key"]


def test_an_open_umask_does_not_open_the_key(tmp_path):
    old = os.umask(0)
    try:
        make_key(tmp_path / "merlin.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "merlin.key").stat().st_mode) == 0o600


def test_processes_that_make_the_key_at_once_get_the_same(tmp_path):
    path = tmp_path / "merlin.key"
    with get_context("fork").Pool(8) as pool:
        assert len(set(pool.map(make_key, [path] * 32, chunksize=1))) == 1


def test_threads_that_make_the_key_at_once_get_the_same(tmp_path):
    path = tmp_path / "merlin.key"
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(make_key, [path] * 32))) == 1


def test_a_file_system_without_hard_links_is_enough(tmp_path, monkeypatch):
    def no_link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(keys.os, "link", no_link)
    path = tmp_path / "merlin.key"
    assert make_key(path) == make_key(path)
    assert [p.name for p in tmp_path.iterdir()] == ["merlin.key"]


def test_a_key_that_the_disk_has_no_room_for_leaves_nothing(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", full)
    with pytest.raises(ConfigError, match=r"merlin\.key cannot be written: No space left"):
        make_key(tmp_path / "merlin.key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o666, 0o601])
def test_a_key_that_others_can_get_at_is_refused_with_the_remedy(tmp_path, mode):
    path = tmp_path / "merlin.key"
    make_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        make_key(path)


def test_upstreams_key_files_are_keys_too(tmp_path):
    path = tmp_path / "encrypt_data_key"
    path.write_bytes(base64.urlsafe_b64encode(bytes(range(32))))
    path.chmod(0o600)
    assert read_key(path) == bytes(range(32))


@pytest.mark.parametrize("content", [b"", b"\n", b"hunter2-is-no-key", b"00" * 31, b"zz" * 32, b"\xff" * 64])
def test_a_file_that_holds_no_key_is_named_and_not_shown(tmp_path, content):
    path = tmp_path / "merlin.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=str(path)) as caught:
        make_key(path)
    assert "hunter2" not in str(caught.value)


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ConfigError, match=name):
            make_key(tmp_path / name)


def test_no_key_is_made_where_none_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="merlin config create"):
        read_key(tmp_path / "merlin.key")


def test_a_directory_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be"):
        make_key(tmp_path / "file" / "merlin.key")


def test_a_link_without_a_target_is_not_followed_into_nowhere(tmp_path):
    path = Path(tmp_path / "merlin.key")
    path.symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"link to .*gone, which does not exist\n.*\(rm .*merlin.key\)"):
        make_key(path)


def test_a_key_that_was_named_and_is_not_there_is_an_error_and_not_a_new_key(tmp_path):
    env = {
        "HOME": str(tmp_path),
        "MERLIN_BROKER_URL": "redis://localhost:1/0",
        "MERLIN_KEY_FILE": "~/other.key",
    }
    config = find_config(env)
    assert config is not None
    with pytest.raises(ConfigError, match=r"MERLIN_KEY_FILE names .*/other\.key, which does not exist"):
        _ = config.namespace
    assert list(tmp_path.iterdir()) == []
    key = make_key(tmp_path / "other.key")
    again = find_config(env)
    assert again is not None
    assert again.key == key


def test_so_it_is_with_an_app_file(tmp_path):
    app_file = tmp_path / "app.yaml"
    app_file.write_text("broker: {name: redis, server: localhost, port: 1}\n")
    env = {"HOME": str(tmp_path), "MERLIN_CONFIG": str(app_file), "MERLIN_KEY_FILE": str(tmp_path / "none")}
    config = find_config(env)
    assert config is not None
    with pytest.raises(ConfigError, match="which does not exist"):
        _ = config.key
