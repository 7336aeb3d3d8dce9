"""Runs the Lua scripts, and translates the errors of the Redis client into ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from merlin.errors import (
    ExecutionError,
    OwnershipLostError,
    RedisFullError,
    RedisUnreachableError,
    StudyGoneError,
)

if TYPE_CHECKING:
    from redis import Redis

_FULL = ("OOM command not allowed", "MISCONF")
_NOT_NOW = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")
KEYS = ("owner", "offers", "leases", "expiry", "mail")

T = TypeVar("T")


class Scripts:
    """Runs the scripts of one study. A server that has lost the scripts gets them again. Threads may share it.

    Raises StudyGoneError, OwnershipLostError, RedisFullError, RedisUnreachableError, or another ExecutionError.
    """

    def __init__(self, client: Redis, namespace: str, study_id: str) -> None:
        self.client = client
        self._study_id = study_id
        # the braces keep a study on one node of a cluster
        self.keys = {name: f"merlin:{namespace}:{{{study_id}}}:{name}" for name in KEYS}
        self._registered: dict[str, Any] = {}

    def run(self, name: str, *args: str | float) -> Any:
        """Run a script as one atomic event; returns its reply."""
        script = self._registered.get(name)
        if script is None:
            script = self._registered[name] = self.client.register_script(_text(name))
        reply = self.call(lambda: script(keys=list(self.keys.values()), args=args))
        match reply:
            case "gone" | ["gone", *_]:
                raise StudyGoneError(
                    f"study {self._study_id}: Redis at {self.place} does not hold it (any more)"
                )
            case "lost" if name != "settle":
                raise OwnershipLostError(f"study {self._study_id} has another owner now")
            case _:
                return reply

    def call(self, action: Callable[[], T]) -> T:
        """Call `action`, and translate the errors of the client."""
        import redis.exceptions as errors

        try:
            return action()
        except (errors.ConnectionError, errors.TimeoutError) as error:
            why = str(error).rstrip(".")
            raise RedisUnreachableError(
                f"Redis at {self.place} does not answer: {why}. Is it running, and may this host reach it?"
            ) from error
        except errors.RedisError as error:
            raise _translated(self.place, error) from error

    def damaged(self, error: Exception) -> ExecutionError:
        """The error to raise for an answer that cannot be decoded."""
        return ExecutionError(
            f"what Redis at {self.place} holds of study {self._study_id} is damaged "
            f"({type(error).__name__}: {str(error)[:100]!a}): merlin cancel ends it, and merlin restart "
            "publishes it again from its ledger"
        )

    @property
    def place(self) -> str:
        """Host and port, without secrets."""
        kwargs = getattr(getattr(self.client, "connection_pool", None), "connection_kwargs", {})
        if "path" in kwargs:
            return str(kwargs["path"])
        return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"


@cache
def _text(name: str) -> str:
    folder = files(__package__) / "lua"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("library", name))


def _translated(place: str, error: Exception) -> ExecutionError:
    import redis.exceptions as errors

    text = str(error)
    if isinstance(error, errors.OutOfMemoryError) or any(word in text for word in _FULL):
        return RedisFullError(
            f"Redis at {place} is full and refuses to write ({text}); nothing was changed. "
            "Give it more memory or disk, or purge studies that nobody needs."
        )
    if isinstance(error, (errors.ReadOnlyError, errors.ClusterError)) or text.startswith(_NOT_NOW):
        return RedisUnreachableError(f"Redis at {place} cannot serve us now: {text}")
    return ExecutionError(f"Redis at {place} refused an operation: {text}")
