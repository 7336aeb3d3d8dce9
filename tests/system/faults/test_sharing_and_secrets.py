"""Users and studies that share a broker, TLS on the way to it, and what must not be seen anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from installation import Installation, installation
from lines_study import LinesStudy, write_spec
from servers import PASSWORD, Authority, RabbitServer, RedisServer, secure_rabbit
from waiting import wait_until

pytestmark = pytest.mark.slow
VARIABLES = ("N=60", "SLEEP=0.02", "SHARD=30")
LONG_S = 60.0  # of leases that do not run out, however slow the machine is


def test_users_share_a_broker_without_seeing_each_other(tmp_path: Path, any_redis: RedisServer) -> None:
    with (
        installation(tmp_path / "ann", any_redis, lease_s=LONG_S) as ann,
        installation(tmp_path / "bob", any_redis, lease_s=LONG_S) as bob,
    ):
        of_ann, of_bob = LinesStudy.publish(ann, *VARIABLES), LinesStudy.publish(bob, *VARIABLES)
        bob.start_worker(of_bob.spec)
        of_bob.wait_for_end()
        assert "celery@w1" not in ann.merlin("query-workers", code=None).stdout
        assert of_ann.num_started() == 0
        ann.start_worker(of_ann.spec)
        of_ann.wait_for_end()
        for study in (of_ann, of_bob):
            assert study.check().num_again == 0
            study.home.stop_workers()


def test_studies_share_workers(tmp_path: Path, any_redis: RedisServer) -> None:
    with installation(tmp_path, any_redis, lease_s=LONG_S) as home:
        studies = []
        for name in ("one", "two", "three"):
            spec = write_spec(tmp_path / name)
            home.merlin("run", spec, "--vars", *VARIABLES, f"OUTPUT_PATH={spec.parent}")
            (workspace,) = (path.parent for path in spec.parent.glob("*/merlin_info"))
            studies.append(LinesStudy(home, spec, workspace))
        home.replace_workers(studies[0].spec, 2)
        for study in studies:
            study.wait_for_end()
            assert study.check().num_again == 0
        home.stop_workers()


def test_a_task_longer_than_many_leases_runs_once(tmp_path: Path, any_redis: RedisServer) -> None:
    with installation(tmp_path, any_redis, lease_s=4.0) as home:
        study = LinesStudy.publish(home, "N=2", f"SLEEP={2.5 * home.lease_s}", "SHARD=2")
        home.replace_workers(study.spec, 2)
        study.wait_for_end()
        with any_redis.client() as client:
            # a worker counts it when it could not renew a lease for half its time: this machine stood still
            stood_still = client.hget(f"merlin:{home.config().namespace}:counters", "outages")
        assert study.check().num_again == 0 or stood_still
        home.stop_workers()


def over_tls(home: Installation, authority: Authority) -> None:
    for name in ("MERLIN_BROKER_URL", "MERLIN_BACKEND_URL"):
        if home.env[name].startswith(("rediss", "amqps")):
            home.env[name] += f"?ssl_ca_certs={authority.ca}"


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_study_runs_over_tls(tmp_path: Path, broker: str, request: pytest.FixtureRequest) -> None:
    rabbit = secure_rabbit() if broker == "rabbitmq" else None
    authority = rabbit.tls if rabbit else request.getfixturevalue("authority")
    with (
        RedisServer(tmp_path, tls=authority) as redis,
        installation(tmp_path, rabbit or redis, redis, lease_s=LONG_S) as home,
    ):
        over_tls(home, authority)
        study = LinesStudy.publish(home, *VARIABLES)
        home.replace_workers(study.spec, 2)
        study.wait_for_end()
        assert study.check().num_again == 0
        home.stop_workers()


def files_with(folder: Path, secrets: list[bytes], but: set[Path]) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file()
        and not any(path.is_relative_to(place) for place in but)
        and any(secret in path.read_bytes() for secret in secrets)
    ]


def command_lines_with(secrets: list[bytes]) -> list[bytes]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return [line for line in lines if any(secret in line for secret in secrets)]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_secrets_are_in_no_file_no_log_and_no_process_list(
    tmp_path: Path, own_redis: RedisServer, broker: str, request: pytest.FixtureRequest
) -> None:
    server: RedisServer | RabbitServer = own_redis
    if broker == "rabbitmq":
        server = request.getfixturevalue("any_rabbit")
    with installation(tmp_path, server, own_redis) as home:
        study = LinesStudy.publish(home, *VARIABLES)
        key = home.config().key
        secrets = [PASSWORD.encode(), key, key.hex().encode()]
        home.env["MERLIN_LOG"] = "DEBUG"
        home.replace_workers(study.spec, 2)
        study.wait_for(1)
        shown = [
            home.merlin(*words, code=None)
            for words in (["doctor"], ["info"], ["config", "show"], ["query-workers"], ["queue-info"])
        ]
        assert command_lines_with(secrets) == []
        study.wait_for_end()
        own_redis.kill9()  # errors are written, too
        shown += [
            home.merlin("-lvl", "DEBUG", *words, code=None)
            for words in (["doctor"], ["query-workers"], ["run", study.spec])
        ]
        assert all(done.returncode for done in shown[-3:])
        wait_until(
            lambda: all("edis" in w.log.read_text().split("ready.")[-1] for w in home.workers), study.show
        )
        own_redis.start_again()
        home.stop_workers()
        for done in shown:
            assert not any(s.decode(errors="replace") in done.stdout + done.stderr for s in secrets), (
                done.args
            )
        keys = {home.home / ".merlin"}
        assert files_with(tmp_path, secrets, keys | {own_redis.folder}) == []
