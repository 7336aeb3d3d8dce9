"""Files of a run may be anybody's, so code that they name is imported only if the user agrees."""

from __future__ import annotations

from merlin.errors import UsageError
from merlin.train.models.registry import MODELS


def require_consent(name: str, where: str, *, trust_code: bool) -> None:
    """UsageError if a file names a model that is not Merlin's own, and the user did not agree; `where`: file:line."""
    if trust_code or name in MODELS or ":" not in name:  # a name without a colon is never imported
        return
    raise UsageError(
        f"{where}: the model {name} is code from outside of Merlin, and nothing of it was run\n"
        "  Whoever wrote this file chose what that name calls. If you trust them, and know what it means on this "
        "machine, add --trust-code; in Python: trust_code=True."
    )
