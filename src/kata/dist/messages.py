"""Messages between ranks that nobody has to wait for, by way of their meeting place."""

from __future__ import annotations

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]: documented under this name

PIECE_BYTES = 2**20
"""The meeting place refuses values of more than 8 MiB."""


class Mail:
    """Bytes under names that all ranks know. Any thread may use it; other calls to the meeting place go on meanwhile.

    store: a connection that is used for this alone.

    Raises: RuntimeError from each method where the meeting place is gone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, name: str, message: bytes) -> None:
        """Leave a message of any size, which will be there soon, and until it is taken."""
        pieces = range(0, len(message), PIECE_BYTES)
        for number, first in enumerate(pieces):
            piece = message[first : first + PIECE_BYTES]
            self._store.set(f"{name}/{number}", piece)  # pyright: ignore[reportArgumentType]: bytes are taken as well
        self._store.set(name, str(len(pieces)))  # last: what is there is there as a whole

    def take(self, name: str) -> bytes | None:
        """The message of that name, which is gone then; None where there is none yet."""
        if not self.has(name):
            return None
        keys = [f"{name}/{number}" for number in range(int(self._store.get(name)))]
        message = b"".join(self._store.get(key) for key in keys)
        for key in (name, *keys):
            self._store.delete_key(key)
        return message

    def has(self, name: str) -> bool:
        """Whether there is a message of that name."""
        return self._store.check([name])
