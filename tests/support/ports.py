"""Finds a free port of loopback, for a server that a script starts; as a program, prints it.

The system takes the ports of outgoing connections from 32768 on (Linux). A port from there could be taken by a test that
runs meanwhile, before the server listens or while it restarts."""

import random
import socket


def free_port() -> int:
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


if __name__ == "__main__":
    print(free_port())
