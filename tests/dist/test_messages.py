"""Messages of any size that nobody waits for."""

import time

import pytest
from torch.distributed import TCPStore

from kata.dist.messages import CHUNK_BYTES, MessageStore
from kata.dist.process_group import ProcessGroup


@pytest.fixture(params=["one rank", "several"])
def ends(request):
    """The mail of who sends and of who takes."""
    if request.param == "one rank":
        mail = ProcessGroup().messages()
        return mail, mail
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return MessageStore(served), MessageStore(served.clone())


@pytest.mark.parametrize(
    "message", [b"", b"\x00\xff", bytes(range(256)) * (10 * CHUNK_BYTES // 256 + 1)]
)
def test_a_message_arrives_as_a_whole_and_once(ends, message):
    """Also one that is larger than what the meeting place takes at once."""
    here, there = ends
    assert there.take("a") is None
    here.send("a", message)
    until_s = time.monotonic() + 60
    while (
        not there.has("a") and time.monotonic() < until_s
    ):  # the sender is not told when it is there
        time.sleep(0.01)
    assert there.take("a") == message
    assert not here.has("a")
