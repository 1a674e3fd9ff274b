"""A run's checkpoints on the Hub: brought there while it runs, and back where a machine has none.

One commit holds the newest checkpoint, the best ones and the run's figures, and takes away what
they replace, so a repository is at every moment something a run can go on from. A Hub that is down
costs uploads, never the run.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from pathlib import Path
from typing import Self

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError

from kata.closing import Closing
from kata.errors import CheckpointError
from kata.launch.hub_errors import HUB_ERRORS, reason
from kata.pointers import BEST, LAST, point, pointed
from kata.train.checkpoint.folder import best_checkpoints, checkpoints, home_of

POLL_S = 10.0
"""Pause between two looks for a new checkpoint."""

POINTERS = "pointers.json"
"""The targets of `last` and `best`, because a repository cannot hold links."""

_log = logging.getLogger(__name__)


class Courier(Closing):
    """Uploads each new checkpoint of `folder` to `repo_id` while it is entered; the last one on
    leaving.

    Entering creates the repository (private) where there is none, and brings back what it holds
    into a folder without checkpoints. Raises: CheckpointError where the Hub cannot be reached at
    that moment.
    """

    def __init__(self, repo_id: str, folder: Path) -> None:
        self.repo_id = repo_id
        self.folder = folder
        self.home = home_of(folder)
        self._api = HfApi()
        self._there: set[str] = set()
        self._warned = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kata-courier", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._api.create_repo(self.repo_id, private=True, exist_ok=True)
            self._there = held(self._api, self.repo_id)
            if self._there and not checkpoints(self.home):
                fetch(self.repo_id, self.folder)
                _log.info(
                    "checkpoints brought back from %s: %s",
                    self.repo_id,
                    ", ".join(sorted(self._there)),
                )
        except HUB_ERRORS as error:
            raise CheckpointError(
                f"checkpoint_repo={self.repo_id}: {reason(error)}",
                rule="the Hub can be reached, and its token may read and write there",
                remedy="log in with `hf auth login` or set HF_TOKEN; or leave out "
                "--checkpoint_repo",
            ) from error
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop the thread, and fetch the rest."""
        self._over.set()
        self._thread.join()
        self._bring()

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self._bring()

    def _bring(self) -> None:
        """Upload new checkpoints. A failure is logged once; the next look tries again."""
        wanted = checkpoints(self.home)[-1:] + best_checkpoints(self.home)
        if not wanted or {path.name for path in wanted} == self._there:
            return
        try:
            send(self._api, self.repo_id, self.folder, wanted, self._there)
        except (
            HUB_ERRORS
        ) as error:  # OSError: a checkpoint that was pruned meanwhile, or no network
            if not self._warned:
                _log.warning(
                    "checkpoints not uploaded to %s, will be tried again: %s",
                    self.repo_id,
                    reason(error),
                )
            self._warned = True
            return
        self._there = {path.name for path in wanted}
        self._warned = False
        _log.info("uploaded to %s: %s", self.repo_id, ", ".join(path.name for path in wanted))


def held(api: HfApi, repo_id: str) -> set[str]:
    """The names of the checkpoints in a repository; empty where it holds none, or does not
    exist.
    """
    try:
        files = api.list_repo_files(repo_id)
    except RepositoryNotFoundError:
        return set()
    return {name.split("/")[1] for name in files if name.startswith("checkpoints/")}


def send(api: HfApi, repo_id: str, folder: Path, wanted: list[Path], there: set[str]) -> None:
    """Upload absent checkpoints of `wanted` and the run's figures, and delete other checkpoints.

    All of that is one commit.
    """
    home = home_of(folder)
    new = [path for path in wanted if path.name not in there]
    files: list[tuple[str, Path]] = []
    for path in new:
        for file in _in(path):
            files.append((f"checkpoints/{path.name}/{file.relative_to(path).as_posix()}", file))
    # Figures grow while they are sent: what is sent is read once.
    figures = [
        (path.name, path.read_bytes()) for path in (*folder.glob("*.json"), *folder.glob("*.jsonl"))
    ]
    targets = {
        name: target.name for name in (LAST, BEST) if (target := pointed(home / name)) is not None
    }
    targets[LAST] = wanted[0].name
    pointers = json.dumps(
        {name: target for name, target in targets.items() if (home / target) in wanted}
    )
    gone = sorted(there - {path.name for path in wanted})
    operations = [
        *(CommitOperationAdd(name, file) for name, file in files),
        *(
            CommitOperationAdd(name, content)
            for name, content in [*figures, (POINTERS, pointers.encode())]
        ),
        *(CommitOperationDelete(f"checkpoints/{name}/", is_folder=True) for name in gone),
    ]
    api.create_commit(repo_id, operations, commit_message=f"Checkpoint {wanted[0].name}")


def fetch(repo_id: str, folder: Path) -> None:
    """Bring a repository's run into `folder`, its pointers set."""
    snapshot_download(
        repo_id, local_dir=folder, allow_patterns=["checkpoints/*", "*.json", "*.jsonl"]
    )
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the download's own notes
    pointers = folder / POINTERS
    for name, target in json.loads(pointers.read_text(encoding="utf-8")).items():
        if name in (LAST, BEST) and Path(target).name == target:
            point(home_of(folder) / name, target)
    pointers.unlink()


def _in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
