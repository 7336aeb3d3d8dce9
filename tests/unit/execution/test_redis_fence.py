"""What redis-py raises becomes a sentence of ours."""

import pytest
from redis.exceptions import ConnectionError as LostConnection

from merlin.errors import ProgressUnreachableError
from merlin.execution.distributed.scripts import Scripts


def test_a_server_that_does_not_answer_is_told_with_one_full_stop():
    def fail():
        raise LostConnection("Error 111 connecting to h:1. Connection refused.")

    with pytest.raises(ProgressUnreachableError, match=r"Connection refused\. Is it running"):
        Scripts(object()).call(fail)
