"""`merlin config`: make, change, choose, show and check the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.cli.options import EXISTING, FILE, json_option, with_options
from merlin.cli.output import print_json, remark
from merlin.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from merlin.config.model import Config, Endpoint
    from merlin.errors import Diagnostic


@click.group()
@click.option("-t", "--test", "for_test", is_flag=True, hidden=True)
@click.pass_context
def config(context: click.Context, for_test: bool) -> None:
    """Make, change, choose, show and check the configuration (app.yaml)."""
    context.obj = for_test  # upstream's --test: `create` and `use` leave ~/.merlin as it is


@config.command()
@click.option("--task-server", default="celery", hidden=True)
@click.option(
    "-o",
    "--output-file",
    "path",
    type=FILE,
    metavar="FILE",
    help="Where to write it [default: ~/.merlin/app.yaml].",
)
@click.option(
    "--broker",
    type=click.Choice(["redis", "rabbitmq"]),
    default="rabbitmq",
    show_default=True,
    help="What carries the messages; progress is always kept in Redis.",
)
@json_option
@click.pass_obj
def create(for_test: bool, task_server: str, path: Path | None, broker: str, as_json: bool) -> None:
    """Write a template to fill in, and use it from now on. A file that exists is kept."""
    from merlin.config.edit import template, use
    from merlin.config.keys import make_key
    from merlin.config.places import default_config_path, default_key_path
    from merlin.config.private_file import make_parent, write_private

    if task_server != "celery":
        raise UsageError(f"--task-server {task_server}: only celery can be configured")
    path = default_config_path(os.environ) if path is None else path.absolute()
    is_new = not os.path.exists(path)  # noqa: PTH110 - False in a directory of somebody else, too
    if is_new:
        make_parent(path)
        write_private(path, template(broker))
    use(path, os.environ, beside=for_test)
    if not for_test:
        make_key(default_key_path(os.environ))
    if as_json:
        print_json({"path": path, "made": is_new})
    elif is_new:
        print(f"{path} is written; fill in what stands in < >, then: merlin config check")
        if not for_test:
            print("Merlin uses it from now on; until it is filled in, add --local to merlin run")
    else:
        print(f"{path} exists and is kept")


# of `update-broker` and `update-backend`, upstream's letters included
_server_options = with_options(
    click.option(
        "--cf",
        "--config-file",
        "path",
        type=FILE,
        metavar="FILE",
        help="The file to change [default: ~/.merlin/app.yaml].",
    ),
    click.option("-u", "--username", metavar="NAME", help="User name on the server."),
    click.option("--pf", "--password-file", "password_file", metavar="FILE", help="File with the password."),
    click.option("-s", "--server", metavar="HOST", help="Host name of the server."),
    click.option(
        "-p",
        "--port",
        type=click.IntRange(1, 65535),
        help="Port of the server [default for another type: its usual one].",
    ),
    click.option("-d", "--db-num", type=click.IntRange(min=0), help="Number of the database (Redis)."),
    click.option("--tls/--no-tls", default=True, show_default=True, help="Encrypt the connection."),
    click.option(
        "-c",
        "--cert-reqs",
        type=click.Choice(["required", "optional", "none"]),
        help="Verify the server's certificate.",
    ),
    click.option("--ca-certs", metavar="FILE", help="The authority that signed the server's certificate."),
    click.option("--certfile", metavar="FILE", help="Client certificate, if the server asks for one."),
    click.option("--keyfile", metavar="FILE", help="Key of the client certificate."),
    json_option,
)


@config.command("update-broker")
@click.option(
    "-t", "--type", "kind", type=click.Choice(["redis", "rabbitmq"]), required=True, help="Kind of broker."
)
@_server_options
@click.option("-v", "--vhost", help="Virtual host (RabbitMQ).")
def update_broker(kind: str, **options: Any) -> None:
    """Change the broker in app.yaml; comments and other lines stay."""
    _update("broker", kind, options)


@config.command("update-backend")
@click.option("-t", "--type", "kind", type=click.Choice(["redis"]), required=True, help="Kind of server.")
@_server_options
@click.option("-e", "--encryption-key", metavar="FILE", help="The file with the key that seals messages.")
def update_backend(kind: str, **options: Any) -> None:
    """Change the Redis that holds the progress of studies; comments and other lines stay."""
    _update("results_backend", kind, options)


def _update(block: str, kind: str, options: dict[str, Any]) -> None:
    from merlin.config.edit import update_block
    from merlin.config.load import load_config
    from merlin.config.places import default_config_path

    path: Path = options.pop("path") or default_config_path(os.environ)
    path, as_json = path.absolute(), options.pop("as_json")
    update_block(path, block, _values(kind, options))
    to_do: list[Diagnostic] = []
    try:
        load_config(path)
    except ConfigError as error:
        to_do = [found for found in error.diagnostics if found.severity == "error"]
    if as_json:
        print_json({"path": path, "changed": block, "to_do": to_do})
        return
    print(f"{path}: {block.replace('_', ' ')} changed")
    if to_do:
        print("still to do:")
    for found in to_do:
        print(found.render())


def _values(kind: str, options: dict[str, Any]) -> dict[str, str | int]:
    """The keys of app.yaml and their new values."""
    names = {("redis", True): "rediss", ("redis", False): "redis", ("rabbitmq", True): "rabbitmq"}
    tls = options.pop("tls")
    values: dict[str, str | int] = {"name": names.get((kind, tls), "amqp")}
    if not tls:
        if options["cert_reqs"] not in (None, "none"):
            raise UsageError("--no-tls and --cert-reqs contradict each other")
        options["cert_reqs"] = "none"
    for option, value in options.items():
        if value is None:
            continue
        if option in ("password_file", "ca_certs", "certfile", "keyfile"):
            file = Path(os.path.expanduser(value)).absolute()  # noqa: PTH111 - a password may begin with ~
            if file.is_file():
                value = str(file)
            elif option == "password_file":  # the value may be a password: it is not repeated
                remark(
                    "--password-file names a file that does not exist; write the password into it (mode 0600), or "
                    "Merlin takes this word for the password itself"
                )
            else:
                raise UsageError(f"--{option.replace('_', '-')} names a file that does not exist")
        values["password" if option == "password_file" else option] = value
    if kind == "redis":
        values.setdefault("username", "")  # the user of a RabbitMQ broker may still stand there
    return values


@config.command()
@click.argument("path", metavar="FILE", type=EXISTING)
@json_option
@click.pass_obj
def use(for_test: bool, path: Path, as_json: bool) -> None:
    """Use another app.yaml from now on (a file, or a directory with one in it)."""
    from merlin.config.edit import use as point_at
    from merlin.config.load import load_config

    path = (path / "app.yaml" if path.is_dir() else path).absolute()
    if not for_test:
        load_config(path)
    point_at(path, os.environ, beside=for_test)
    first = [name for name in ("MERLIN_BROKER_URL", "MERLIN_CONFIG") if os.environ.get(name)]
    if as_json:
        print_json({"path": path, "hidden_by": first})
        return
    print(f"from now on: {path}")
    for name in first:
        print(f"but in this shell {name} is set, and comes first: unset {name}")


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Show which configuration is used and why. Passwords are never shown."""
    from merlin.config.load import find_config

    with _naming_the_file():
        found = find_config()
    if as_json:
        print_json({"configured": found is not None, **(_facts(found) if found else {})})
        return
    if found is None:
        print("no broker is configured: studies run on this machine. To change that: merlin server start")
        return
    print(f"{'from':<17}{found.path or 'the environment'} ({found.origin})")
    for title, endpoint in (("broker", found.broker), ("results backend", found.backend)):
        print(f"{title:<17}{endpoint.safe_url}{_encryption(endpoint)}")
    print(f"{'key':<17}{found.key_path}")
    print(f"{'namespace':<17}{found.namespace}")
    if found.celery:
        print(f"{'celery overrides':<17}{', '.join(found.celery)}")
    for warning in found.warnings:
        print(warning.render())


@contextmanager
def _naming_the_file() -> Iterator[None]:
    """Before the errors of a configuration, print which file it is, and why this file is used."""
    from merlin.config.load import find_config_path

    try:
        yield
    except ConfigError as error:
        if error.diagnostics and (found := find_config_path()) is not None:
            remark(f"the configuration {found[0]} ({found[1]}) cannot be used:")
        raise


def _encryption(endpoint: Endpoint) -> str:
    if endpoint.tls is None:
        return ""
    return "  (TLS, not verified)" if endpoint.tls.cert_reqs == "none" else "  (TLS, verified)"


def _facts(found: Config) -> dict[str, Any]:
    """What can be shown of a configuration."""

    def server(of: Endpoint) -> dict[str, Any]:
        return {"url": of.safe_url, "kind": of.kind, "address": of.address, "tls": of.tls}

    return {
        "origin": found.origin,
        "path": found.path,
        "broker": server(found.broker),
        "results_backend": server(found.backend),
        "key_file": found.key_path,
        "namespace": found.namespace,
        "celery_overrides": sorted(found.celery),  # names alone: a value may hold a secret
        "warnings": [warning.render() for warning in found.warnings],
    }


@config.command()
@json_option
def check(as_json: bool) -> None:
    """Check the configuration, the key and the servers; exits with 1 if a server does not answer."""
    from merlin.config.load import require_config
    from merlin.views.servers import reach_all

    with _naming_the_file():
        found = require_config()
    facts = _facts(found)  # reads the key
    reached = reach_all(found)
    if as_json:
        servers = [{"url": endpoint.safe_url, "reach": reach} for endpoint, reach in reached]
        print_json({**facts, "servers": servers})
    else:
        print(f"configuration {found.path or found.origin}")
        for warning in found.warnings:
            print(warning.render())
        for _, reach in reached:
            version = f" {reach.version}, {reach.latency_ms:.1f} ms" if reach.ok else ""
            print(f"{reach.detail}:{version}" if version else reach.detail)
            if reach.hint:
                print(f"    {reach.hint}")
    sys.exit(0 if all(reach.ok for _, reach in reached) else 1)
