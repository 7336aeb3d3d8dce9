# What `write_merlin` of commands.py writes, after a line that names the SOCKET of the process that forks.
# Python's own libraries are all that it may load, and few of them.
import json
import os
import signal
import socket
import sys


def main() -> int:
    mask = os.umask(0o077)
    request = {
        "kind": "merlin",
        "argv": sys.argv[1:],
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "umask": mask,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as replies:
        replies.connect(SOCKET)  # noqa: F821
        socket.send_fds(replies, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(replies.recv(100))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = int(replies.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


sys.exit(main())
