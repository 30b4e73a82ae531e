"""Finds a free port of loopback, for a server that a script starts; as a program, prints it.

The system takes the ports of outgoing connections from 32768 on (Linux). A port from there could be taken by a test that
runs meanwhile, before the server listens or while it restarts."""

import errno
import random
import socket

# Abstract sockets, which the system frees when the process ends.
RESERVATIONS: list[socket.socket] = []


def reserve(port: int) -> bool:
    """Reserves a port among the test processes, as `reserve` in tests/chaos/process.rs does. Returns False if another
    process has reserved it, perhaps for a server that is down."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0holdpoint-test-port-{port}")
    except OSError as error:
        reservation.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    RESERVATIONS.append(reservation)
    return True


def free_port() -> int:
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if reserve(port):
                return port


if __name__ == "__main__":
    print(free_port())
