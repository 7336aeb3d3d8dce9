"""docker-compose.yml and workers/: right without an engine to ask."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"(?<!\$)\$(?:\{(\w+)|(\w+))")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_compose_file_follows_the_specification(compose: dict[str, Any]) -> None:
    import check_jsonschema

    schema = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))


def test_everything_a_service_refers_to_is_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("secrets", [])) <= set(compose["secrets"]), name
        assert {config["source"] for config in service.get("configs", [])} <= set(compose["configs"]), name
        assert set(service.get("depends_on", {})) <= set(compose["services"]), name
        volumes = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert {v for v in volumes if re.fullmatch(r"\w+", v)} <= set(compose["volumes"]), name


def test_files_that_it_names_exist(compose: dict[str, Any]) -> None:
    build = compose["services"]["worker"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    for name in ("app.yaml", "app-rabbitmq.yaml"):
        assert (ROOT / "workers" / name).is_file()
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "workers/Dockerfile").read_text(), re.MULTILINE)
    needed = {name for line in copied for name in line.split() if not name.startswith("--")}
    assert all((ROOT / name).exists() for name in needed)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert needed <= kept


def test_servers_are_reached_from_this_host_alone_and_have_passwords(compose: dict[str, Any]) -> None:
    for name in ("redis", "rabbitmq"):
        service = compose["services"][name]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert any(f"/run/secrets/{name}_password" in line for line in service["command"])
        assert "environment" not in service, "a password in the environment is shown by docker inspect"
    assert "appendonly yes" in compose["services"]["redis"]["command"][0]


def test_every_variable_is_explained_and_no_shell_variable_is_taken_for_one(compose: dict[str, Any]) -> None:
    used = {a or b for a, b in VARIABLE.findall(re.sub(r"#.*", "", COMPOSE.read_text()))}
    readme = (ROOT / "workers/README.md").read_text()
    assert {name for name in used - {"PWD"} if f"`{name}`" not in readme} == set()


@pytest.mark.parametrize("name", ["app.yaml", "app-rabbitmq.yaml"])
def test_the_configuration_of_the_workers_matches_the_services(compose: dict[str, Any], name: str) -> None:
    app = yaml.safe_load((ROOT / "workers" / name).read_text())
    mounted = {f"/run/secrets/{secret}" for secret in compose["services"]["worker"]["secrets"]}
    for block in ("broker", "results_backend"):
        server = compose["services"][app[block]["server"]]
        assert [port.rsplit(":", 1)[1] for port in server["ports"]] == [str(app[block]["port"])]
        assert {app[block][key] for key in ("password", "encryption_key") if key in app[block]} <= mounted
