"""`merlin server`: a private Redis, from the system, a wheel, or a container."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count, duration, size
from merlin.cli.options import AT_LEAST_ONE, FOLDER, json_option, with_options
from merlin.cli.output import plain, print_json, remark
from merlin.errors import ConfigError, UsageError, command_line

if TYPE_CHECKING:
    from merlin.server.folder import Folder
    from merlin.server.status import Status

ENGINES = ("auto", "system", "wheel", "docker", "podman", "singularity", "apptainer")

folder_option = click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default=Path("merlin_server"),
    show_default=True,
    help="The directory of the server.",
)
place_options = with_options(
    click.option(
        "-ip",
        "--ipaddress",
        "--host",
        "host",
        metavar="ADDRESS",
        help="Bind to this address [default: 127.0.0.1].",
    ),
    click.option(
        "-p", "--port", type=click.IntRange(1, 65535), help="Listen on this port [default: a free one]."
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="What runs Redis [default: auto: the system's, else the wheel's].",
    ),
)
image_option = click.option("--image", metavar="NAME", help="The image of a container engine.")


@click.group()
def server() -> None:
    """Run a private Redis: loopback, random port and password, nothing to install as root.

    Its files lie in ./merlin_server, and Merlin finds it there.
    """


def _folder(path: Path) -> Folder:
    from merlin.server.folder import Folder

    return Folder(path.absolute())


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The settings that the command line changes."""
    changes = {name: value for name, value in given.items() if value is not None}
    if "port" in changes:
        changes["port_is_fixed"] = True
    return changes


@server.command()
@folder_option
@place_options
@image_option
@json_option
def init(folder: Path, as_json: bool, **given: Any) -> None:
    """Make the directory of a server, with a random password. One that exists is kept."""
    from merlin.server.lifecycle import init as make

    place = _folder(folder)
    made = make(place, _changes(given))
    if as_json:
        print_json({"folder": place.path, "made": made})
        return
    print("Merlin server initialization successful.")  # upstream's words, for scripts that wait for them
    print(f"{place.path} is {'ready' if made else 'there already'}; next: merlin server start")
    _say_who_can_connect(place)


@server.command()
@folder_option
@place_options
@json_option
def start(folder: Path, as_json: bool, **given: Any) -> None:
    """Start the server, and wait until it answers. It is made first if there is none."""
    from merlin.server.lifecycle import start as begin

    place = _folder(folder)
    found, started = begin(place, _changes(given))
    if as_json:
        print_json({**plain(found), "started": started})
        return
    if started:
        _say_started(found)
    print(_headline(found) if started else f"{_headline(found)} (it was running already)")
    _say_how_to_use(place)


def _say_started(found: Status) -> None:
    if found.pid:
        print(f"Server started with PID {found.pid}.")


def _say_how_to_use(place: Folder) -> None:
    """Say whether `merlin run` in this directory takes this server, and how to take it elsewhere."""
    from merlin.config.load import find_config_path

    hidden = [name for name in ("MERLIN_BROKER_URL", "MERLIN_CONFIG") if os.environ.get(name)]
    try:
        found = find_config_path()
        used = found[0].resolve() if found else None
        why = f"{used} comes first" if used else "it is in another directory"
    except ConfigError as error:
        used, why = None, str(error)
    if "MERLIN_BROKER_URL" in hidden:
        used, why = None, "MERLIN_BROKER_URL comes first"
    if used == place.app_file.resolve():
        print("Merlin uses it in this directory. From anywhere:")
    else:
        print(f"Merlin does NOT use it yet: {why}\nTo use it:")
    unset = f"unset {' '.join(hidden)}; " if hidden else ""
    print(f"  {unset}{command_line('config', 'use', place.app_file)}")
    _say_who_can_connect(place)


def _say_who_can_connect(place: Folder) -> None:
    from merlin.config.reach import OPEN_TO_HOLDERS, is_loopback
    from merlin.server.folder import reachable_host

    settings = place.settings()
    if is_loopback(settings.host):
        return
    if settings.port:
        there = f"{reachable_host(settings.host)}, port {settings.port}"
        print(f"Other machines reach it at {there}, as {place.app_file} says.")
        again = command_line("server", "config", "--host")
        print(f"If they know this machine under another address: {again} ADDRESS")
    print(OPEN_TO_HOLDERS)


@server.command()
@folder_option
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show whether the server runs; exits with 1 if it does not."""
    from merlin.server.status import status as look

    found = look(_folder(folder))
    if as_json:
        print_json(found)
    else:
        if found.state not in ("hanging", "elsewhere"):  # upstream's words, for scripts that look for them
            print(f"Merlin server is {'' if found.state in ('running', 'loading') else 'not '}running.")
        print(_headline(found))
        if found.uptime_s is not None:
            clients = count(found.num_clients or 0, "client")
            print(f"  up {duration(found.uptime_s)}, {size(found.used_memory_bytes or 0)}, {clients}")
        if found.detail:
            print(f"  {found.detail}")
    sys.exit(0 if found.state == "running" else 1)


def _headline(found: Status) -> str:
    if found.state in ("missing", "stopped"):
        return f"{'no server' if found.state == 'missing' else 'not running'}: {found.folder}"
    who = f", process {found.pid}" if found.pid else ""
    machine = f" on {found.machine}" if found.machine else ""
    return f"Redis {found.version} ({found.program or found.engine}) is {found.state}{machine}: {found.address}{who}"


@server.command()
@folder_option
@json_option
def stop(folder: Path, as_json: bool) -> None:
    """Stop the server; its data stay on the disk."""
    from merlin.server.lifecycle import stop as end

    place = _folder(folder)
    stopped = end(place)
    if as_json:
        print_json({"folder": place.path, "stopped": stopped})
    else:
        print("Merlin server terminated." if stopped else "it was not running")


@server.command()
@folder_option
@json_option
def restart(folder: Path, as_json: bool) -> None:
    """Stop the server and start it again; studies go on where they were."""
    from merlin.server.lifecycle import restart as again

    place = _folder(folder)
    found = again(place)
    if as_json:
        print_json(found)
    else:
        _say_started(found)
        print(_headline(found))
        _say_who_can_connect(place)


@server.command("config")
@folder_option
@place_options
@image_option
@click.option(
    "-pwd", "--password", metavar="FILE", help="A file with the password (mode 0600); - asks for it."
)
@click.option(
    "--add-user",
    nargs=2,
    metavar="NAME FILE",
    help="Add a user, whose password is in a file; - asks for it. Counts at once.",
)
@click.option("--remove-user", metavar="NAME", help="Remove a user. Counts at once.")
@click.option("-d", "--directory", "data_dir", metavar="DIR", help="Where Redis keeps its data.")
@click.option("-ss", "--snapshot-seconds", type=AT_LEAST_ONE, help="Seconds between snapshots.")
@click.option("-sc", "--snapshot-changes", type=AT_LEAST_ONE, help="Changes worth a snapshot.")
@click.option("-sf", "--snapshot-file", help="The file of snapshots.", metavar="NAME")
@click.option(
    "-am",
    "--append-mode",
    "append_sync",
    type=click.Choice(["always", "everysec", "no"]),
    help="How often the append-only file is forced to the disk.",
)
@click.option("-af", "--append-file", help="The append-only file.", metavar="NAME")
@json_option
def configure(
    folder: Path,
    as_json: bool,
    add_user: tuple[str, str] | None,
    remove_user: str | None,
    password: str | None,
    data_dir: str | None,
    **given: Any,
) -> None:
    """Change settings of the server; users change at once, everything else at the next start.

    In place of the file with a password, the password itself may stand, as in upstream's Merlin.
    """
    from merlin.base.files import absolute_path
    from merlin.server.lifecycle import configure as change
    from merlin.server.status import status as look

    place = _folder(folder)
    changes = _changes(given)
    new_password = ""
    if data_dir is not None:
        changes["data_dir"] = str(absolute_path(data_dir))
    if password is not None and (file := _file_of(password)).is_file():
        changes["password_file"] = str(file.absolute())
    elif password is not None:
        new_password, changes["password_file"] = _password("--password", password), ""
    if add_user or remove_user:
        changes["users"] = _users(dict(place.settings().users), add_user, remove_user)
    if not changes:
        raise UsageError("nothing to change; see: merlin server config --help")
    running = look(place).state in ("running", "loading", "hanging")
    change(place, changes, password=new_password)
    changed = sorted(set(changes) - {"port_is_fixed"})
    needs_restart = running and changed != ["users"]
    if as_json:
        print_json({"folder": place.path, "changed": changed, "needs_restart": needs_restart})
    else:
        later = "; it counts after: merlin server restart" if needs_restart else ""
        print(f"changed: {', '.join(changed)}{later}")


def _users(users: dict[str, str], add: tuple[str, str] | None, remove: str | None) -> dict[str, str]:
    """The users with what Redis keeps of their passwords, after one was removed and one added."""
    if remove and users.pop(remove, None) is None:
        known = ", ".join(users) or "none"
        raise UsageError(f"--remove-user: there is no user {remove!r}; there are: {known}")
    if add:
        name, word = add
        users[name] = hashlib.sha256(_password("--add-user", word).encode()).hexdigest()
    return users


def _file_of(word: str) -> Path:
    """The file that a word may name; a password may begin with ~, too."""
    return Path(os.path.expanduser(word))  # noqa: PTH111


def _password(option: str, word: str) -> str:
    """The password that a file holds, that is typed in (-), or, as upstream takes it, `word` itself."""
    from merlin.config.places import looks_like_a_file

    file = _file_of(word)
    if word == "-":
        password: str = click.prompt("password", hide_input=True, confirmation_prompt=True)
    elif file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        password = lines[0].strip() if lines else ""
    elif looks_like_a_file(word):
        raise UsageError(f"{option}: there is no file {word}; make it, with the password in its first line")
    else:
        remark(
            f"{option}: there is no file of this name, so it is the password itself, which everybody on this machine "
            "can read on your command line; a file, or - to type it, is safer"
        )
        password = word
    if not password:
        raise UsageError(f"{option}: the password is empty")
    return password
