"""Messages between ranks through the store of the rendezvous; no rank has to wait."""

from __future__ import annotations

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]: documented under this name

CHUNK_BYTES = 2**20
"""Bytes per value; the store refuses values of more than 8 MiB."""


class MessageStore:
    """Bytes under names that all ranks know. Any thread may use it.

    Args:
        store: a connection that nothing else uses.

    Raises: RuntimeError from each method if the store is gone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, name: str, message: bytes) -> None:
        """Send a message of any size; it stays in the store until it is taken."""
        chunks = range(0, len(message), CHUNK_BYTES)
        for number, first in enumerate(chunks):
            chunk = message[first : first + CHUNK_BYTES]
            self._store.set(f"{name}/{number}", chunk)  # pyright: ignore[reportArgumentType]: bytes are taken as well
        self._store.set(name, str(len(chunks)))  # last: what is there is there as a whole

    def take(self, name: str) -> bytes | None:
        """Remove and return the message of that name; None if there is none yet."""
        if not self.has(name):
            return None
        keys = [f"{name}/{number}" for number in range(int(self._store.get(name)))]
        message = b"".join(self._store.get(key) for key in keys)
        for key in (name, *keys):
            self._store.delete_key(key)
        return message

    def has(self, name: str) -> bool:
        """Return True if there is a message of that name."""
        return self._store.check([name])
