"""The Lua scripts, and the fence around the Redis client: its errors become ours here."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from merlin.errors import ExecutionError, ProgressFullError, ProgressUnreachableError

if TYPE_CHECKING:
    from redis import Redis

_FULL = ("OOM command not allowed", "MISCONF")
_NOT_NOW = ("BUSY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")


class Scripts:
    """Runs operations; a server that has lost the scripts gets them again."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._registered: dict[str, Any] = {}

    def run(self, name: str, keys: list[str], now: float | None, args: dict[str, Any]) -> Any:
        """One atomic operation; returns its decoded reply.

        Raises ProgressFullError, ProgressUnreachableError, or ExecutionError for what should not happen.
        """
        script = self._registered.get(name)
        if script is None:
            script = self._registered[name] = self._client.register_script(_text(name))
        clock = "" if now is None else repr(now)
        given = {name: value for name, value in args.items() if value is not None}
        payload = json.dumps(given, separators=(",", ":"))
        return json.loads(self.call(lambda: script(keys=keys, args=[clock, payload])))

    def call(self, action: Any) -> Any:
        """Whatever `action` does with the client, with its errors translated."""
        import redis.exceptions as errors

        try:
            return action()
        except (errors.ConnectionError, errors.TimeoutError) as error:
            why = str(error).rstrip(".")
            raise ProgressUnreachableError(
                f"Redis at {self.place} does not answer: {why}. Is it running, and may this host reach it?"
            ) from error
        except errors.RedisError as error:
            raise _translated(self.place, error) from error

    @property
    def place(self) -> str:
        """Host and port, without secrets."""
        if hasattr(self._client, "get_default_node"):  # a cluster
            node = self._client.get_default_node()
            return f"{node.host}:{node.port}"
        pool = getattr(self._client, "connection_pool", None)
        kwargs = getattr(pool, "connection_kwargs", {})
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
        return ProgressFullError(
            f"Redis at {place} is full and refuses to write ({text}); nothing was changed. "
            "Give it more memory or disk, or purge studies that nobody needs."
        )
    if isinstance(error, (errors.ReadOnlyError, errors.ClusterError)) or text.startswith(_NOT_NOW):
        return ProgressUnreachableError(f"Redis at {place} cannot serve us now: {text}")
    return ExecutionError(f"Redis at {place} refused an operation: {text}")
