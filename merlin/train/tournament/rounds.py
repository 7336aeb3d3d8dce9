"""A round as the trainer plays it: offer, evaluate, meet, decide.

All ranks of a trainer play together; the first one has the transport and passes on what came. A trainer that
keeps its own model is bit by bit what it was before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from merlin.train.metrics_log import finite_or_none
from merlin.train.state_file import State
from merlin.train.tournament.averaging import mean_of_both
from merlin.train.tournament.decisions import DecidingMetric, Scores, decide, decide_merged
from merlin.train.tournament.exchange import ModelTransport, RoundInterruptedError, Summary, T, Waiting
from merlin.train.tournament.mutation import mutated
from merlin.train.tournament.strategies import pairs, regularised_evolution, truncation

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.loading.loader import ShardLoader
    from merlin.train.models.base import Direction
    from merlin.train.trainer import Trainer

SECONDS = ("exchange_s", "wait_s", "evaluation_s")  # what a round takes
LEAST_WAIT_S = 30.0  # for processes that start, and where an interval takes next to no time
_LOOK_S = (0.0002, 0.1)  # the first and the longest pause between two looks
_SLICE_S = 5.0  # after which the other ranks learn that the first one still waits


class Rounds:
    """The tournament of one trainer, played by all its ranks; `transport` is None on all but the first one."""

    def __init__(
        self,
        config: TrainConfig,
        directions: Mapping[str, Direction],
        loader: ShardLoader | None,
        transport: ModelTransport | None,
        stop: Callable[[], bool],
    ) -> None:
        """`loader` has the samples that this trainer judges models by, None if no samples decide."""
        self._config = config.tournament
        self._seed = config.seed
        self._metrics = metrics_of(config, directions)
        self._loader = loader
        self._transport = transport
        self._stop = stop
        self._birth = 0
        self._since = time.monotonic()
        self._seconds = dict.fromkeys(SECONDS, 0.0)

    def play(self, trainer: Trainer, number: int) -> dict[str, Any]:
        """Play round `number` (from 1), which may replace parts of the trainer's model.

        Returns facts for the metrics file, as {"partner": 3, "kept": "local" | "partner" | "merged", "scores": {…}};
        without "kept" if it met nobody. Raises RoundInterruptedError.
        """
        limit_s = max(LEAST_WAIT_S, self._config.wait * (time.monotonic() - self._since))
        play = {"averaging": self._average, "random_pairwise": self._meet}.get(
            self._config.strategy, self._copy
        )
        try:
            facts = play(trainer, number, limit_s if self._config.wait else 0.0)
        finally:
            self._since = time.monotonic()
        return facts

    def take_seconds(self) -> dict[str, float]:
        """What rounds have taken since the last call."""
        taken, self._seconds = self._seconds, dict.fromkeys(SECONDS, 0.0)
        return {name: round(value, 6) for name, value in taken.items()}

    def _average(self, trainer: Trainer, number: int, limit_s: float) -> dict[str, Any]:
        """Replace the models of all trainers by their mean."""
        with self._timed("exchange_s"):
            own = trainer.values(self._config.exchange)
        found = self._drive(trainer, lambda transport: self._mean(transport, number, limit_s, own))
        others = [k for k in found["trainers"] if k != trainer.index]
        if not others:
            return {"partners": []}
        with self._timed("exchange_s"):
            is_own_in = trainer.index in found["trainers"]
            trainer.take_values(found["values"], self._config.exchange, is_sound=is_own_in)
        self._birth = number
        return {"partners": others, "kept": "merged"}

    @staticmethod
    def _mean(transport: ModelTransport, number: int, limit_s: float, own: Tensor) -> Waiting[dict[str, Any]]:
        found = yield from transport.mean(number, own, limit_s)
        if found is None:
            return {"trainers": [], "values": own}
        return {"trainers": found.trainers, "values": found.values}

    def _meet(self, trainer: Trainer, number: int, limit_s: float) -> dict[str, Any]:
        """Random pairs: keep the better of two models, or their mean, by the samples of this trainer."""
        own = self._export(trainer)
        self._offer(number, {}, own)
        local = self._evaluate(trainer)
        found = self._drive(trainer, lambda transport: self._partner(transport, trainer, number, limit_s))
        facts: dict[str, Any] = {"partner": found["partner"], "scores": {"local": _jsonable(local)}}
        if found["state"] is None:
            return facts
        self._import(trainer, found["state"])
        theirs = self._evaluate(trainer)
        facts["scores"]["partner"] = _jsonable(theirs)
        both = {trainer.index: own, found["partner"]: found["state"]}
        mean = mean_of_both(both, trainer.index) if self._config.merge else None
        if mean is None:
            decision = decide(local, theirs, self._metrics)
        else:
            self._import(trainer, mean)
            merged = self._evaluate(trainer)
            facts["scores"]["merged"] = _jsonable(merged)
            decision = decide_merged(local, theirs, merged, self._metrics)
        states = {"local": own, "partner": found["state"], "merged": mean}
        last = "partner" if mean is None else "merged"
        if decision.kept != last:
            self._import(trainer, states[decision.kept])
        if decision.kept != "local":
            self._birth = number
        return {**facts, "partner_round": found["round"], "kept": decision.kept, "reason": decision.reason}

    def _partner(
        self, transport: ModelTransport, trainer: Trainer, number: int, limit_s: float
    ) -> Waiting[dict[str, Any]]:
        moves: dict[int, int] = {}
        for one, other in pairs(self._seed, number, transport.participants(number)):
            moves |= {one: other, other: one} if one != other else {}
        offer = yield from transport.take(number, moves, limit_s)
        if offer is None:
            return {"partner": moves.get(trainer.index), "state": None}
        return {"partner": offer.trainer, "round": offer.number, "state": offer.state}

    def _copy(self, trainer: Trainer, number: int, limit_s: float) -> dict[str, Any]:
        """Truncation and evolution: all are compared by their own scores, and some become mutated copies."""
        local = self._evaluate(trainer)
        own = self._export(trainer)
        self._offer(number, local, own)
        found = self._drive(trainer, lambda transport: self._parent(transport, trainer, number, limit_s))
        facts: dict[str, Any] = {"partner": found["partner"], "scores": {"local": _jsonable(local)}}
        if found["state"] is None:
            return {**facts, "kept": "local"} if found["met"] else facts
        mutations = self._config.mutation.model_dump()
        state, changed = mutated(
            found["state"], mutations, self._seed, number, trainer.index, trainer.configured_capacity
        )
        self._import(trainer, state)
        self._birth = number
        if trainer.capacity is not None:
            facts["capacity"] = trainer.capacity
        facts["scores"]["partner"] = _jsonable(found["scores"])
        return {**facts, "partner_round": found["round"], "kept": "partner", "mutated": changed}

    def _parent(
        self, transport: ModelTransport, trainer: Trainer, number: int, limit_s: float
    ) -> Waiting[dict[str, Any]]:
        members = transport.participants(number)
        summaries = yield from transport.summaries(number, members, limit_s)
        moves = self._moves(number, summaries)
        offer = yield from transport.take(number, moves, limit_s)
        if offer is None:
            return {"partner": moves.get(trainer.index), "state": None, "met": len(summaries) > 1}
        scores = dict(summaries[offer.trainer].scores)
        return {"partner": offer.trainer, "round": offer.number, "state": offer.state, "scores": scores}

    def _moves(self, number: int, summaries: Mapping[int, Summary]) -> dict[int, int]:
        """The copies that are made, as {copy: original}."""
        scores = {trainer: summary.scores for trainer, summary in summaries.items()}
        half = max(1, len(scores) // 2)
        if self._config.strategy == "truncation":
            return truncation(scores, self._metrics, min(self._config.top or half, len(scores)))
        births = {trainer: summary.birth for trainer, summary in summaries.items()}
        sample = self._config.sample or half
        return regularised_evolution(self._seed, number, births, scores, self._metrics, sample)

    # what all ranks of a trainer do together

    def _export(self, trainer: Trainer) -> State:
        with self._timed("exchange_s"):
            return trainer.export_state(self._config.exchange)

    def _offer(self, number: int, scores: dict[str, float], own: State) -> None:
        if self._transport is not None:
            with self._timed("exchange_s"):
                self._transport.offer(number, Summary(scores, self._birth), own)

    def _import(self, trainer: Trainer, state: State) -> None:
        with self._timed("exchange_s"):
            trainer.import_state(state, self._config.exchange)

    def _evaluate(self, trainer: Trainer) -> dict[str, float]:
        assert self._loader is not None
        with self._timed("evaluation_s"):
            return trainer.evaluate(self._loader)

    def _drive(self, trainer: Trainer, work: Callable[[ModelTransport], Waiting[T]]) -> T:
        """Do the first rank's work to its end; all ranks get the result. Raises RoundInterruptedError."""
        ranks = trainer.mesh.ranks
        waiting = None if self._transport is None else work(self._transport)
        while True:
            answer: dict[str, Any] = {} if waiting is None else self._some(waiting)
            if ranks.size > 1:
                with self._timed("exchange_s"):
                    answer = ranks.from_first(answer)
            if answer["state"] == "interrupted":
                raise RoundInterruptedError
            if answer["state"] == "done":
                found: T = answer["found"]
                return found

    def _some(self, waiting: Waiting[T]) -> dict[str, Any]:
        """Do as much of the work as a few seconds allow."""
        begin, pauses, pause = time.monotonic(), 0.0, _LOOK_S[0]
        answer: dict[str, Any] = {"state": "waiting"}
        while time.monotonic() < begin + _SLICE_S:
            try:
                next(waiting)
            except StopIteration as done:
                answer = {"state": "done", "found": done.value}
                break
            except RoundInterruptedError:
                answer = {"state": "interrupted"}
                break
            if self._stop():
                answer = {"state": "interrupted"}
                break
            looked = time.monotonic()
            time.sleep(pause)
            pauses += time.monotonic() - looked
            pause = min(1.5 * pause, _LOOK_S[1])
        self._seconds["wait_s"] += pauses
        self._seconds["exchange_s"] += time.monotonic() - begin - pauses
        return answer

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._seconds[what] += time.monotonic() - begin

    # beside the rounds

    def agree(self, trainer: Trainer, number: int) -> int:
        """The round, at most `number`, from which all go on; `number` is that of the newest checkpoint."""
        agreed = self._drive(trainer, lambda transport: transport.agree(number))
        self.take_seconds()
        return agreed

    def after_save(self, number: int, saved: bool) -> None:
        """Report that a checkpoint was written after round `number`, or could not be."""
        if self._transport is None:
            return
        waiting = self._transport.saved(number, saved)
        while self._some(waiting)["state"] == "waiting":
            pass

    def state_dict(self) -> dict[str, Any]:
        """What the next round depends on, for the trainer's checkpoint."""
        return {"birth": self._birth}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._birth = int(state["birth"])

    def close(self, finished: bool) -> None:
        if self._loader is not None:
            self._loader.close()
        if self._transport is not None:
            self._transport.close(finished)


def metrics_of(config: TrainConfig, directions: Mapping[str, Direction]) -> Sequence[DecidingMetric]:
    """What decides: the configured metrics, else the loss."""
    given = [DecidingMetric(m.name, m.direction or directions[m.name]) for m in config.tournament.metrics]
    return given or [DecidingMetric("loss", directions["loss"])]


def _jsonable(scores: Scores) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in scores.items()}
