"""What a forked child does with locks that its parent's threads hold."""

from __future__ import annotations

import os
import threading

from merlin.shards.reading.sharing import ForkLock


def exit_code_of_child(work) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_lock_that_another_thread_held_is_free_in_a_forked_child():
    lock, is_held, may_end = ForkLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()

    def enter_twice_in_many_threads():
        def enter():
            for _ in range(100):
                with lock, lock:
                    seen.append(1)

        seen: list[int] = []
        threads = [threading.Thread(target=enter) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(seen) == 400

    try:
        assert exit_code_of_child(enter_twice_in_many_threads) == 0
    finally:
        may_end.set()
        thread.join()
    with lock:
        pass
