"""The proxy of the tests leaves no socket behind, or a test that runs later would fail for it."""

import gc
import socket
import sys

from benchmarks.streaming.servers.proxy import proxied


def test_connections_that_have_just_begun_are_closed_with_the_proxy(monkeypatch):
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    for _ in range(5):
        clients: list[socket.socket] = []
        with proxied("127.0.0.1", 9) as proxy:
            for _ in range(20):
                clients.append(socket.socket())
                clients[-1].setblocking(False)
                clients[-1].connect_ex(("127.0.0.1", proxy.port))
        for client in clients:
            client.close()
        gc.collect()
    assert lost == []
