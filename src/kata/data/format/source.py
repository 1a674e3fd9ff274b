"""Sources of a dataset's files: a folder, LeRobot's local home, the Hub, or another store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kata.config.dataset import folder_of, is_address
from kata.data.format.info import VERSIONS, read_info
from kata.data.remote.http_ranges import TRANSPORT_ERROR
from kata.data.remote.hub_objects import newest_revision
from kata.data.remote.mirror import Mirror
from kata.data.remote.objects import open_objects
from kata.data.remote.remote_store import RemoteStore
from kata.data.storage.store import LocalStore, Store
from kata.errors import DataError

_PATTERNS_MAX = 1000
"""Files above which a download asks for whole folders: matching costs files times patterns."""


@dataclass
class Source:
    """The folder of a dataset, and the Hub revision from which missing files can be fetched.

    Attributes:
        repo_id: <owner>/<name>.
        root: the folder.
        revision: a tag, branch or commit, or None for a local folder.
        notes: messages for the user.
        far: the store that has the cameras' files, or None where they are in the folder.
        mirror: the local copy of metadata and tables in that store, whose folder is `root`.
    """

    repo_id: str
    root: Path
    revision: str | None = None
    notes: list[str] = field(default_factory=list)
    far: Store | None = None
    mirror: Mirror | None = None

    @property
    def place(self) -> str:
        """Return the folder, or the address in a store, for messages."""
        return str(self.root) if self.far is None else self.far.location("")

    @cached_property
    def store(self) -> Store:
        """Return the store that cameras read from."""
        return self.far or LocalStore(self.root)

    def ensure(self, files: Sequence[str]) -> None:
        """Download those files that are missing; do nothing for a local folder.

        Of a dataset in a store only tables are brought, without images, and absent files are left
        out. An interrupted download continues where it stopped. The processes of a node wait for
        each other, because every file is locked.
        """
        if self.mirror is not None:
            columns = read_info(self.root).columns
            images = [key for key, column in columns.items() if column.dtype == "image"]
            tables = [name for name in files if name.endswith(".parquet")]
            self.mirror.bring(tables, images)
            return
        missing = [name for name in files if not (self.root / name).is_file()]
        if self.revision is None or not missing:
            return
        patterns = missing
        if len(missing) > _PATTERNS_MAX:
            patterns = sorted({f"{name.split('/')[0]}/*" for name in missing})
        _download(self.repo_id, self.revision, patterns, local_only=False)


def lerobot_home() -> Path:
    """Return $HF_LEROBOT_HOME, or 'lerobot' below Hugging Face's cache."""
    return Path(
        os.environ.get("HF_LEROBOT_HOME") or Path(constants.HF_HOME) / "lerobot"
    ).expanduser()


def locate(
    repo_id: str, root: str | Path | None, revision: str | None, *, streaming: bool = False
) -> Source:
    """Find a dataset.

    The order is: `root` if given, $HF_LEROBOT_HOME/<repo_id>, a snapshot of the Hub in
    $HF_LEROBOT_HOME/hub. Of a snapshot the metadata is fetched now and the rest by `Source.ensure`.

    Args:
        repo_id: <owner>/<name>.
        root: folder of the dataset, its address in a store, or None.
        revision: tag, branch or commit on the Hub, or None.
        streaming: True to leave the cameras' files of a dataset of the Hub there.

    Raises:
        DataError: There is no such dataset; the message names the folders that were searched.
    """
    if is_address(root):
        return _in_store(repo_id, str(root))
    if root is not None:
        return Source(repo_id, folder_of(root))
    home = lerobot_home() / repo_id
    if (home / "meta" / "info.json").is_file():
        notes = (
            [f"revision '{revision}' is not looked for: the local copy in {home} is used"]
            if revision
            else []
        )
        return Source(repo_id, home, notes=notes)
    if streaming:
        return _in_store(repo_id, _streamed_address(repo_id, revision))
    return _from_hub(repo_id, revision)


def _in_store(repo_id: str, address: str) -> Source:
    """Return a dataset whose metadata has been brought to this machine."""
    store = RemoteStore(open_objects(address))
    mirror = Mirror(store)
    notes = mirror.bring_metadata()
    return Source(repo_id, mirror.root, notes=notes, far=store, mirror=mirror)


def _streamed_address(repo_id: str, revision: str | None) -> str:
    """Return the address of a revision, else of the newest format tag that exists, else of main."""
    candidates = [revision] if revision else [*VERSIONS, "main"]
    address = f"hf://datasets/{repo_id}"
    found = newest_revision(repo_id, candidates)
    if found is None:
        raise _no_revision(repo_id, candidates)
    return f"{address}@{found.replace('/', '%2F')}"


def _from_hub(repo_id: str, revision: str | None) -> Source:
    """Return a snapshot of the given revision, else of the newest format tag that exists, else of
    main.
    """
    candidates = [revision] if revision else [*VERSIONS, "main"]
    local_only = False
    unreachable: LocalEntryNotFoundError | None = None
    for name in candidates:
        try:
            folder = _download(repo_id, name, ["meta/*"], local_only=local_only)
        except RevisionNotFoundError:
            continue
        except LocalEntryNotFoundError as error:
            # Without network the first failure has already cost the timeout, so the other names
            # are only looked up on disk.
            unreachable, local_only = error, True
            continue
        return Source(repo_id, folder, name)
    if unreachable is not None:
        raise _offline(repo_id, unreachable) from unreachable
    raise _no_revision(repo_id, candidates)


def _no_revision(repo_id: str, candidates: Sequence[str]) -> DataError:
    names = " or ".join(repr(name) for name in candidates)
    return DataError(
        f"dataset '{repo_id}' has no revision {names} on the Hub",
        rule="--dataset.revision is a tag, branch or commit of the dataset",
        remedy=f"see https://huggingface.co/datasets/{repo_id}",
    )


def _download(repo_id: str, revision: str, patterns: list[str], *, local_only: bool) -> Path:
    try:
        folder = snapshot_download(
            repo_id,
            repo_type="dataset",
            revision=revision,
            cache_dir=lerobot_home() / "hub",
            allow_patterns=patterns,
            local_files_only=local_only,
        )
    except (RevisionNotFoundError, LocalEntryNotFoundError):
        raise
    except (RepositoryNotFoundError, GatedRepoError, HFValidationError) as error:
        raise DataError(
            f"dataset '{repo_id}' is not on the Hub, or not open to you ({type(error).__name__})",
            rule="a repo id is <owner>/<name> of a dataset that you may read",
            remedy="check --dataset.repo_id, log in with `hf auth login`, or give a --dataset.root",
        ) from error
    except (TRANSPORT_ERROR, OSError) as error:
        raise _offline(repo_id, error) from error
    return Path(folder)


def _offline(repo_id: str, error: Exception) -> DataError:
    home = lerobot_home()
    return DataError(
        f"dataset '{repo_id}' is not on this machine and the Hub cannot be reached "
        f"({type(error).__name__})",
        rule=f"looked for {home / repo_id} and in the cache {home / 'hub'}",
        remedy="connect to the network (and unset HF_HUB_OFFLINE), copy the dataset to one of "
        "these folders, "
        "or give its folder with --dataset.root",
    )


def refuse_outside(root: Path, names: Iterable[str]) -> None:
    """Raise DataError if a name below `root` leads out of it through a link; absent files are
    skipped.

    A snapshot in Hugging Face's cache links from `<repo>/snapshots/<commit>` to `<repo>/blobs`,
    which counts as inside. The folder itself may be reached through a link.
    """
    base = os.path.realpath(root)
    if os.path.basename(os.path.dirname(base)) == "snapshots":
        base = os.path.dirname(os.path.dirname(base))
    # realpath costs one system call per part of a path; files of one folder share theirs.
    folders: dict[str, str] = {}
    for name in names:
        path = os.path.join(root, name)
        folder = os.path.dirname(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = (
            os.path.realpath(path)
            if os.path.islink(path)
            else os.path.join(folders[folder], os.path.basename(path))
        )
        if os.path.commonpath([base, real]) != base:
            raise DataError(
                f"{path} leads to {real}",
                rule=f"the files of a dataset lie in its folder {base}",
                remedy="copy the file there, or give the folder that holds all files with "
                "--dataset.root",
            )
