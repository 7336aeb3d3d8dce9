"""The tests that every implementation of `merlin.execution.distributed.contracts` must pass.

class TestMine(ExchangeContract):
    def make_backend(self): return MyBackend(…)  # a client of its own to the same server, with leases of LEASE_S
    def make_carrier(self): return MyCarrier(…)
    def receive(self, queue): …                  # the next message for a worker of this queue, or None
    def advance(self, seconds): …                # move the clock of ownerships, leases and beats forward
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from merlin.errors import OwnershipLostError, StudyGoneError
from merlin.execution.distributed.contracts import Backend, Carrier, Leases, Letter, Mailbox
from merlin.execution.distributed.registry import SILENT_S, OpenWork, RunningChunk, StudyInfo, WorkerInfo
from merlin.plan.fit import Need

LEASE_S = 60.0
OWNER_S = 4.0  # or a little more
LONG_S = 60.0  # limit of a wait that normally ends at once
STUDY, SESSION = "study", "one"
NAMES = ("celery@w.node-1", "a b", "", "ü/%20\n{x} {y}", '"\\', "x" * 300)
TEXTS = (
    "{}",
    '{"a": "} {", "b": "x  y"}',
    json.dumps({"c": 'ü"\\\n\x00\u2028 %s'}),
    '{"d": "ü\u2028 😀", "e": [1, {"f": null}]}',
    '{\n "g": 1}',
    json.dumps({"h": "x" * 1_000_000}),
)


def raised(error: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


class ExchangeContract:
    """Each test gets an empty server."""

    def make_backend(self) -> Backend:
        raise NotImplementedError

    def make_carrier(self) -> Carrier:
        raise NotImplementedError

    def receive(self, queue: str) -> Mapping[str, str] | None:
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        raise NotImplementedError

    def opened(self, *leases: str, study: str = STUDY) -> tuple[Mailbox, Leases]:
        """The owner's mailbox and a worker's leases of a study with these offers."""
        backend = self.make_backend()
        mailbox = backend.mailbox(study)
        mailbox.open(SESSION)
        mailbox.offer(dict.fromkeys(leases, "{}"), "0")
        return mailbox, self.make_backend().leases(study)

    def new_owner(self) -> Mailbox:
        """Make another process the owner of the study."""
        mailbox = self.make_backend().mailbox(STUDY)
        assert mailbox.own(SESSION, force=True).is_ours
        return mailbox

    # ---------------------------------------------------------------- leases

    def test_an_offer_is_taken_once(self) -> None:
        mailbox, leases = self.opened("a", "b")
        assert leases.take("a", "w") == "{}"
        assert leases.take("a", "w") is None
        assert self.make_backend().leases(STUDY).take("a", "v") is None
        assert leases.take("never offered", "w") is None
        assert letters_of(mailbox) == [("taken", "a", "w")]
        assert {o.lease: o.worker for o in mailbox.offers()} == {"a": "w", "b": ""}
        assert (mailbox.names(), mailbox.num_held()) == ({"a", "b"}, 1)

    def test_of_many_who_take_the_same_offer_one_gets_it(self) -> None:
        mailbox, leases = self.opened("a")
        got: list[str | None] = []
        threads = [threading.Thread(target=lambda: got.append(leases.take("a", "w"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got, key=str) == [None] * 7 + ["{}"]
        assert len(mailbox.letters()) == 1

    def test_a_renewed_lease_is_held_on_and_the_others_run_out(self) -> None:
        _, leases = self.opened("a", "b", "c")
        for lease in "abc":
            leases.take(lease, "w")
        self.advance(LEASE_S - 10)
        assert leases.renew(["a", "nobody's"]) == {"nobody's"}
        assert leases.renew([]) == set()
        assert self.new_owner().expire() == 0
        self.advance(20)
        new_owner = self.new_owner()
        assert new_owner.expire() == 2
        assert new_owner.expire() == 0
        assert leases.renew(["a", "b", "c"]) == {"b", "c"}
        assert sorted(letters_of(new_owner)[-2:]) == [("expired", "b", ""), ("expired", "c", "")]
        assert new_owner.names() == {"a"}

    def test_a_lost_lease_cannot_be_used(self) -> None:
        _, leases = self.opened("late", "void", "held")
        for lease in ("late", "void", "held"):
            leases.take(lease, "w")
        self.advance(LEASE_S + 10)
        leases.renew(["void", "held"])
        new_owner = self.new_owner()
        new_owner.expire()
        new_owner.void(["void", "nobody's"])
        before = new_owner.letters()
        for lease in ("late", "void"):
            assert leases.renew([lease]) == {lease}
            assert not leases.settle(lease, "{}")
            assert leases.take(lease, "w") is None
        assert new_owner.letters() == before
        assert leases.renew(["held"]) == set()

    def test_a_lease_that_has_run_out_is_held_until_the_owner_ends_it(self) -> None:
        _, leases = self.opened("a")
        leases.take("a", "w")
        self.advance(2 * LEASE_S)
        assert leases.renew(["a"]) == set()
        assert self.new_owner().expire() == 0

    def test_a_lease_ends_once_with_one_report(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        assert leases.settle("a", '{"r": 1}')
        assert not leases.settle("a", '{"r": 2}')
        assert not leases.settle("b", "{}"), "it was not taken"
        assert leases.renew(["a"]) == {"a"}
        (letter,) = mailbox.letters(mailbox.letters()[0].id)
        assert (letter.kind, letter.lease, letter.report) == ("report", "a", '{"r": 1}')
        assert (mailbox.names(), mailbox.num_held()) == ({"b"}, 0)

    def test_texts_and_names_of_workers_arrive_as_they_were(self) -> None:
        mailbox, leases = self.opened()
        offers = {f"{i}/{k}": text for i, text in enumerate(TEXTS) for k in range(len(NAMES))}
        mailbox.offer(offers, "0")
        names = {lease: NAMES[int(lease.partition("/")[2])] for lease in offers}
        assert {o.lease: o.envelope for o in mailbox.offers()} == offers
        for lease, name in names.items():
            assert leases.take(lease, name) == offers[lease]
        assert {o.lease: (o.worker, o.envelope) for o in mailbox.offers()} == {
            lease: (names[lease], text) for lease, text in offers.items()
        }
        assert {x.lease: x.worker for x in mailbox.letters()} == names
        last = mailbox.letters()[-1].id
        for lease, text in offers.items():
            assert leases.settle(lease, text)
        assert {x.lease: x.report for x in mailbox.letters(last)} == offers

    def test_an_offer_has_its_start_and_a_lease_its_remaining_time(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        now = mailbox.renew()
        found = {o.lease: o for o in mailbox.offers()}
        assert all(abs(o.since - now) < LEASE_S for o in found.values())
        assert abs(now - self.make_backend().time()) < LEASE_S
        assert 0 < found["a"].expires_s <= LEASE_S
        assert not found["b"].expires_s
        self.advance(LEASE_S + 1)
        assert {o.lease: o.expires_s < 0 for o in mailbox.offers()} == {"a": True, "b": False}

    def test_thousands_are_offered_and_void_at_once(self) -> None:
        mailbox, leases = self.opened()
        many = {str(i): "{}" for i in range(5000)}
        mailbox.offer(many, "0")
        assert mailbox.names() == set(many)
        for i in range(0, 5000, 100):
            assert leases.take(str(i), "w")
        assert leases.renew(many) == set(many) - {str(i) for i in range(0, 5000, 100)}
        mailbox.void(many)
        assert mailbox.offers() == []
        assert leases.take("7", "w") is None

    # --------------------------------------------------------------- letters

    def test_letters_come_in_order_after_the_one_that_was_read(self) -> None:
        mailbox, leases = self.opened(*map(str, range(1500)))
        for i in range(1500):
            leases.take(str(i), "w")
        got: list[Letter] = []
        while more := mailbox.letters(got[-1].id if got else ""):
            got += more
        assert [letter.lease for letter in got] == [str(i) for i in range(1500)]
        assert mailbox.letters("0")[0] == got[0]
        assert mailbox.letters(got[-1].id) == []

    def test_a_letter_wakes_whoever_waits_for_it(self) -> None:
        mailbox, leases = self.opened("a")
        got: list[Letter] = []
        thread = threading.Thread(target=lambda: got.extend(mailbox.letters("", LONG_S)))
        thread.start()
        leases.take("a", "w")
        thread.join(LONG_S / 2)
        assert [letter.lease for letter in got] == ["a"]
        assert mailbox.letters(got[-1].id, 0.01) == []

    def test_a_new_owner_knows_what_the_last_one_has_read(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        read = mailbox.letters()[-1].id
        mailbox.offer({"c": "{}"}, read)
        leases.take("b", "w")
        new_owner = self.make_backend().mailbox(STUDY)
        standing = new_owner.own(SESSION, force=True)
        assert (standing.is_ours, standing.read) == (True, read)
        assert [x.lease for x in new_owner.letters(standing.read)] == ["b"]
        assert [x.lease for x in new_owner.letters()] == ["a", "b"], "kept for a while"

    # ------------------------------------------------------------- ownership

    def test_an_owner_is_replaced_when_it_stops_renewing(self) -> None:
        mailbox, _ = self.opened("a")
        other = self.make_backend().mailbox(STUDY)
        assert not other.own(SESSION).is_ours
        self.advance(OWNER_S - 1)
        mailbox.renew()
        self.advance(OWNER_S - 1)
        assert not other.own(SESSION).is_ours
        self.advance(OWNER_S)
        assert other.own(SESSION).is_ours
        assert other.own(SESSION).is_ours, "asked again"
        assert other.names() == {"a"}
        assert raised(OwnershipLostError, mailbox.renew)

    def test_an_owner_that_releases_is_followed_at_once(self) -> None:
        mailbox, _ = self.opened()
        mailbox.release()
        other = self.make_backend().mailbox(STUDY)
        assert other.own(SESSION).is_ours
        assert not mailbox.own(SESSION).is_ours

    def test_of_two_who_believe_that_they_own_it_the_first_can_change_nothing(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        new_owner = self.new_owner()
        self.advance(2 * LEASE_S)
        new_owner.renew()
        before = new_owner.names(), new_owner.num_held(), new_owner.letters(), new_owner.own(SESSION).read
        assert raised(OwnershipLostError, mailbox.renew)
        assert raised(OwnershipLostError, lambda: mailbox.offer({"c": "{}"}, "9-9"))
        assert raised(OwnershipLostError, lambda: mailbox.void(["a", "b"]))
        assert raised(OwnershipLostError, mailbox.expire)
        assert raised(OwnershipLostError, mailbox.release)
        assert raised(OwnershipLostError, mailbox.close)
        assert not mailbox.own(SESSION).is_ours
        assert (
            new_owner.names(),
            new_owner.num_held(),
            new_owner.letters(),
            new_owner.own(SESSION).read,
        ) == before
        new_owner.void(["a"])
        assert new_owner.names() == {"b"}

    def test_a_new_run_voids_everything_of_the_one_before(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        later = self.make_backend().mailbox(STUDY)
        assert not later.open("two", only_if_gone=True)
        mailbox.renew()
        assert later.open("two")
        assert (later.offers(), later.letters()) == ([], [])
        assert leases.renew(["a"]) == {"a"}
        assert not leases.settle("a", "{}")
        assert leases.take("b", "w") is None
        assert raised(OwnershipLostError, mailbox.renew)
        assert not mailbox.own(SESSION, force=True).is_ours, "it is no owner of that run"
        later.offer({"a": '{"new": 1}'}, "0")
        assert leases.take("a", "w") == '{"new": 1}'

    def test_only_one_of_many_opens_a_lost_study(self) -> None:
        mailboxes = [self.make_backend().mailbox(STUDY) for _ in range(4)]
        assert [m.open(SESSION, only_if_gone=True) for m in mailboxes] == [True, False, False, False]
        assert mailboxes[0].renew()
        assert raised(OwnershipLostError, mailboxes[1].renew)

    # ----------------------------------------------------------------- ends

    def test_a_study_that_nobody_has_opened_is_gone(self) -> None:
        backend = self.make_backend()
        self.expect_gone(backend.mailbox(STUDY), backend.leases(STUDY))
        assert raised(StudyGoneError, lambda: backend.mailbox(STUDY).own(SESSION))

    def test_a_study_that_has_ended_is_gone_and_known_to_be_over(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        mailbox.close()
        self.expect_gone(mailbox, leases)
        assert self.make_backend().mailbox(STUDY).own(SESSION).is_over
        assert mailbox.own(SESSION, force=True).is_over

    def test_anybody_may_end_a_study(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        self.make_backend().mailbox(STUDY).drop()
        self.expect_gone(mailbox, leases)
        assert mailbox.own(SESSION).is_over

    def test_a_study_that_is_forgotten_is_gone(self) -> None:
        mailbox, leases = self.opened("a", "b")
        leases.take("a", "w")
        mailbox.forget()
        self.expect_gone(mailbox, leases)
        assert raised(StudyGoneError, lambda: mailbox.own(SESSION))
        assert self.make_backend().mailbox(STUDY).open("two", only_if_gone=True)

    def test_a_study_that_has_ended_may_begin_again(self) -> None:
        mailbox, leases = self.opened("a")
        mailbox.close()
        assert mailbox.open("two", only_if_gone=True)
        assert mailbox.exists()
        mailbox.offer({"a": "{}"}, "0")
        assert leases.take("a", "w")

    def expect_gone(self, mailbox: Mailbox, leases: Leases) -> None:
        calls: list[Callable[[], object]] = [
            lambda: leases.take("a", "w"),
            lambda: leases.renew(["a"]),
            lambda: leases.settle("a", "{}"),
            lambda: mailbox.offer({"c": "{}"}, "0"),
            lambda: mailbox.void(["a"]),
            mailbox.renew,
            mailbox.release,
            mailbox.expire,
            mailbox.close,
        ]
        assert [raised(StudyGoneError, call) for call in calls] == [True] * len(calls)
        assert not mailbox.exists()
        assert (mailbox.offers(), mailbox.names(), mailbox.num_held(), mailbox.letters()) == (
            [],
            set(),
            0,
            [],
        )

    def test_studies_are_independent(self) -> None:
        mailbox, leases = self.opened("a")
        other, other_leases = self.opened("a", study="other")
        leases.take("a", "w")
        other.close()
        assert raised(StudyGoneError, lambda: other_leases.take("a", "w"))
        assert mailbox.num_held() == 1

    # -------------------------------------------------------------- registry

    def test_workers_are_alive_until_they_leave_or_fall_silent(self) -> None:
        registry, other = self.make_backend().registry, self.make_backend().registry
        now = registry.beat(WORKER)
        registry.beat(replace(WORKER, name="celery@b", running=[]))
        found, _ = other.workers()
        assert found == replace(WORKER, last_beat=found.last_beat, age_s=found.age_s)
        assert abs(found.last_beat - now) < SILENT_S
        assert other.num_workers(now) == 2
        assert other.num_workers(now + 2 * SILENT_S) == 0
        registry.leave("celery@b", "nobody")
        registry.leave()
        assert [w.name for w in other.workers()] == [WORKER.name]
        self.advance(SILENT_S + 1)
        assert other.workers() == []
        assert [w.is_alive for w in other.workers(all=True)] == [False]
        self.advance(3601)
        assert other.workers(all=True) == []

    def test_a_command_reaches_the_workers_that_it_is_for_once(self) -> None:
        registry, other = self.make_backend().registry, self.make_backend().registry
        for name in ("a", "b"):
            registry.beat(replace(WORKER, name=name))
        assert other.send(None, "stop", in_s=5.0) == ["a", "b"]
        assert other.send(["b"], "drop", study="s", instances=["i"]) == ["b"]
        assert registry.receive("nobody") == ([], 0)
        commands, num_refused = registry.receive("b")
        assert [(c.op, c.in_s, c.study) for c in commands] == [("stop", 5.0, ""), ("drop", 0.0, "s")]
        assert (num_refused, len({c.id for c in commands})) == (0, 2)
        assert registry.receive("b") == ([], 0)
        assert [c.op for c in registry.receive("a")[0]] == ["stop"]

    def test_what_a_study_wants_of_workers_is_known_until_it_is_withdrawn(self) -> None:
        registry, other = self.make_backend().registry, self.make_backend().registry
        work = [
            OpenWork(
                queue="sim",
                num_at_once=7,
                need=Need(cores=4, gpus=0.5),
                need_s=60.5,
                waiting=["a needs more"],
            ),
            OpenWork(queue="post", num_at_once=0),
        ]
        registry.publish_work(STUDY, work)
        assert other.open_work() == {}, "of a study that nobody has advertised"
        registry.advertise(INFO)
        registry.publish_work(STUDY, work)
        assert other.open_work() == {STUDY: work}
        registry.publish_work(STUDY, [])
        assert other.open_work() == {STUDY: []}
        registry.withdraw(STUDY, "an earlier run")
        assert other.open_work() == {STUDY: []}
        registry.withdraw(STUDY, SESSION)
        assert other.open_work() == {}
        registry.advertise(INFO)
        assert other.open_work() == {}
        registry.withdraw(STUDY)

    def test_studies_are_advertised_until_their_run_is_withdrawn(self) -> None:
        registry, other = self.make_backend().registry, self.make_backend().registry
        registry.advertise(INFO)
        registry.advertise(replace(INFO, study_id="older", published=0.5))
        assert [s.study_id for s in other.studies()] == ["older", STUDY]
        assert other.studies()[1] == INFO
        registry.advertise(replace(INFO, session="two"))
        other.withdraw(STUDY, SESSION)
        assert [s.session for s in other.studies()] == [SESSION, "two"], "another run of it is open"
        other.withdraw(STUDY, "two")
        other.withdraw("older")
        other.withdraw("nobody's")
        assert registry.studies() == []

    # --------------------------------------------------------------- carrier

    def test_messages_arrive_in_their_queue(self) -> None:
        carrier = self.make_carrier()
        assert set(carrier.empty(["hot", "cold"])) == {"hot", "cold"}
        envelopes = [{"body": text, "mac": str(i)} for i, text in enumerate(TEXTS[:-1])]
        carrier.send("hot", envelopes)
        assert list(carrier.empty(["hot", "cold"])) == ["cold"]
        assert [self.receive("hot") for _ in envelopes] == envelopes
        assert list(carrier.empty(["hot"])) == ["hot"]
        assert (self.receive("hot"), self.receive("cold")) == (None, None)

    def test_retries_overtake_other_messages(self) -> None:
        carrier = self.make_carrier()
        carrier.send("hot", [{"body": "first"}])
        carrier.send("hot", [{"body": "again"}], is_retry=True)
        assert [self.receive("hot") for _ in range(2)] == [{"body": "again"}, {"body": "first"}]


WORKER = WorkerInfo(
    name="celery@a.node",
    host="node",
    pid=1,
    queues=["q"],
    concurrency=2,
    started=1.0,
    version="1",
    running=[RunningChunk(study=STUDY, instance="sim", lo=0, hi=2, since=1.0)],
)
INFO = StudyInfo(
    study_id=STUDY,
    name='n "ü"',
    workspace="/w",
    plan="p",
    queues=["q", "r"],
    session=SESSION,
    published=1.0,
)


def letters_of(mailbox: Mailbox) -> list[tuple[str, str, str]]:
    return [(letter.kind, letter.lease, letter.worker) for letter in mailbox.letters()]
