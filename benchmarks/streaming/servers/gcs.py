"""A server of Google Cloud Storage: the part of its JSON API that datasets are read with."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.streaming.servers.files import FileHandler, FileServer

PREFIX = "lab/one/"
"""What the names of all objects begin with."""


class GcsServer(FileServer):
    """A server of one bucket, `sets`, whose objects are the files of a folder behind PREFIX.

    Attributes:
        page: the most objects in an answer.
    """

    def __init__(self, folder: Path, page: int = 3) -> None:
        super().__init__(folder, GcsHandler)
        self.page = page


class GcsHandler(FileHandler):
    """The answers to requests for lists, resources and bytes of objects, and to uploads."""

    def do_POST(self) -> None:  # noqa: N802 - the name that the base class calls
        """Answer an upload, after the body."""
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def route(self, path: str) -> None:
        """Answer a request by the beginning of its path."""
        place, _, name = path.partition("/b/sets/o")
        asked = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        if place == "/upload/storage/v1" and self.command == "POST":
            file = self._file(asked["name"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self._body)
            self._say(_resource(self.server.folder, file))
        elif place == "/storage/v1" and not name:
            self._list(asked.get("prefix", ""), int(asked.get("pageToken", "0")))
        elif place not in ("/storage/v1", "/download/storage/v1"):
            self.send(404, b"no such bucket")
        elif not self._file(name[1:]).is_file():
            self.send(404, b"no such object")
        else:
            self._object(self._file(name[1:]), asked)

    def _object(self, file: Path, asked: dict[str, str]) -> None:
        about = _resource(self.server.folder, file)
        if asked.get("ifGenerationMatch", about["generation"]) != about["generation"]:
            self.send(412, b"another generation")
        elif asked.get("alt") == "media":
            self.send_file(file)
        else:
            self._say(about)

    def _list(self, prefix: str, first: int) -> None:
        files = [self.server.folder / name for name in self.server.names()]
        found = [_resource(self.server.folder, file) for file in files]
        found = [each for each in found if each["name"].startswith(prefix)]
        last = first + self.server.page
        token = {"nextPageToken": str(last)} if last < len(found) else {}
        self._say({"items": found[first:last], **token})

    def _file(self, name: str) -> Path:
        return self.server.folder / name.removeprefix(PREFIX)

    def _say(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _resource(folder: Path, file: Path) -> dict[str, str]:
    stat = file.stat()
    name = PREFIX + file.relative_to(folder).as_posix()
    return {"name": name, "size": str(stat.st_size), "generation": str(stat.st_mtime_ns)}
