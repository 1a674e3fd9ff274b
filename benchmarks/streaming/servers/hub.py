"""A server that speaks the part of the Hub's API which reading and uploading datasets use."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from benchmarks.streaming.servers.files import FileHandler, FileServer, etag

COMMIT = "c" * 40
_LFS_SUFFIXES = (".mp4", ".parquet")
_ENTRY, _REVISION, _REPO = "EntryNotFound", "RevisionNotFound", "RepoNotFound"


class HubServer(FileServer):
    """A Hub with one dataset and one bucket of the same files.

    Attributes:
        repo_id: name of the dataset, and of the bucket.
        tags: revisions that the dataset has.
        commit: the commit that they all name.
        signature: part of the addresses of large files; others are refused as expired.
        page: entries of a page of a listing.
    """

    def __init__(self, folder: Path, *tags: str) -> None:
        super().__init__(folder, HubHandler)
        self.repo_id = "x/y"
        self.tags = tags or ("main",)
        self.commit = COMMIT
        self.signature = "SIGNATURE0"
        self.page = 1000


class HubHandler(FileHandler):
    """The answers of the Hub: revisions, listings, files with redirects, and commits."""

    def do_POST(self) -> None:  # noqa: N802 - the name that the base class calls
        """Answer a request for paths, or a commit."""
        self._answer()

    def route(self, path: str) -> None:
        """Answer a request for the dataset, the bucket, or the storage of large files."""
        parts = path.strip("/").split("/")
        repo = self.server.repo_id
        if parts[0] == "cdn":
            self._stored(parts[1])
        elif path.startswith(f"/api/datasets/{repo}"):
            self._dataset(parts[4:])
        elif path.startswith(f"/datasets/{repo}/resolve/"):
            self._resolve(parts[4], "/".join(parts[5:]))
        elif path.startswith(f"/api/buckets/{repo}"):
            self._bucket(parts[4:])
        elif path.startswith(f"/buckets/{repo}/resolve/"):
            self._file("/".join(parts[4:]), is_large=True)
        else:
            self._absent(_REPO)

    def _dataset(self, parts: list[str]) -> None:
        kind = parts[0] if parts else "revision"
        revision = parts[1] if len(parts) > 1 else "main"
        if kind in ("revision", "tree", "paths-info", "preupload", "commit") and not self._has(
            revision
        ):
            self._absent(_REVISION)
        elif kind == "revision":
            siblings = [{"rfilename": name} for name in self.server.names()]
            self._json({"id": self.server.repo_id, "sha": self.server.commit, "siblings": siblings})
        elif kind == "tree":
            self._tree("/".join(parts[2:]), self._entry)
        elif kind == "preupload":
            files = json.loads(self._body())["files"]
            for file in files:
                file |= {"uploadMode": "regular", "shouldIgnore": False}
            self._json({"files": files})
        elif kind == "commit":
            self._commit()
        else:
            self._absent(_ENTRY)

    def _bucket(self, parts: list[str]) -> None:
        if not parts:
            self._json({"id": self.server.repo_id, "private": False, "size": 0, "totalFiles": 0})
        elif parts[0] == "tree":
            self._tree("/".join(parts[1:]), self._bucket_entry)
        else:
            self._absent(_ENTRY)

    def _has(self, revision: str) -> bool:
        return revision in (*self.server.tags, self.server.commit)

    def _tree(self, below: str, entry: Any) -> None:
        """Send a page of a recursive listing, with the address of the next one."""
        prefix = f"{below}/" if below else ""
        names = [name for name in self.server.names() if name.startswith(prefix)]
        if below and not names:
            self._absent(_ENTRY)
            return
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        first = int(query.get("cursor", ["0"])[0])
        end = first + self.server.page
        more = (
            {"Link": f'<{self._address()}{url.path}?recursive=True&cursor={end}>; rel="next"'}
            if end < len(names)
            else {}
        )
        self._json([entry(name) for name in names[first:end]], more)

    def _entry(self, name: str) -> dict[str, Any]:
        file = self.server.folder / name
        size = file.stat().st_size
        found: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": etag(file)}
        if name.endswith(_LFS_SUFFIXES):
            found["lfs"] = {"oid": _sha256(etag(file)), "size": size, "pointerSize": 130}
        return found

    def _bucket_entry(self, name: str) -> dict[str, Any]:
        file = self.server.folder / name
        size = file.stat().st_size
        return {"type": "file", "path": name, "size": size, "xetHash": _sha256(etag(file))}

    def _resolve(self, revision: str, name: str) -> None:
        if not self._has(revision):
            self._absent(_REVISION)
        else:
            self._file(name, is_large=name.endswith(_LFS_SUFFIXES))

    def _file(self, name: str, *, is_large: bool) -> None:
        """Send a small file, or the signed address of a large one."""
        file = self.server.folder / name
        if not file.is_file():
            self._absent(_ENTRY)
        elif is_large:
            location = f"{self._address('localhost')}/cdn/{quote(name, safe='')}"
            self.send(
                302,
                b"",
                {
                    "Location": f"{location}?X-Amz-Signature={self.server.signature}",
                    "X-Repo-Commit": self.server.commit,
                    "X-Linked-Etag": f'"{_sha256(etag(file))}"',
                    "X-Linked-Size": str(file.stat().st_size),
                },
            )
        else:
            self.send_file(file)

    def _stored(self, name: str) -> None:
        """Send a large file if its address is signed, and carries no token of the Hub's."""
        signature = parse_qs(urlsplit(self.path).query).get("X-Amz-Signature", [""])[0]
        name = self._unquoted(name)
        if signature != self.server.signature:
            self.send(403, b"expired")
        elif (self.server.folder / name).is_file():
            self.send_file(self.server.folder / name)
        else:
            self.send(404, b"gone")

    def _unquoted(self, name: str) -> str:
        # The base class has decoded the path already, so a large file's name has several parts.
        return self.path.partition("?")[0].removeprefix("/cdn/").replace("%2F", "/") or name

    def _commit(self) -> None:
        for line in self._body().splitlines():
            step = json.loads(line)
            if step["key"] == "file":
                target = self.server.folder / step["value"]["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base64.b64decode(step["value"]["content"]))
        url = f"{self._address()}/datasets/{self.server.repo_id}/commit/{self.server.commit}"
        self._json({"success": True, "commitOid": self.server.commit, "commitUrl": url})

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _address(self, host: str = "127.0.0.1") -> str:
        # The port that the client has used, which may be that of a proxy.
        port = (self.headers.get("Host") or "").rpartition(":")[2]
        return f"http://{host}:{port}"

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self.send(200, json.dumps(value).encode(), headers)

    def _absent(self, code: str) -> None:
        self.send(404, b"", {"X-Error-Code": code, "X-Error-Message": "not found"})

    def send_file(self, file: Path) -> None:
        """Send a file with the commit that it belongs to."""
        super().send_file(file)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
