"""The options that name a dataset, the same for every verb that opens one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from kata.config.option import Form, Options, option
from kata.errors import ConfigError

EPISODES = Form(
    "episode numbers from 0 on in a list, or 'available'", "[0,3]", lambda text: text == "available"
)


_ADDRESS = re.compile(r"(?!file://)[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(root: str | Path | None) -> bool:
    """Return whether a dataset's root is an address in a store, such as s3://bucket/folder."""
    return isinstance(root, str) and _ADDRESS.match(root) is not None


def folder_of(root: str | Path) -> Path:
    """Return the folder that a root names: a path, or file:// and a path."""
    text = str(root)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return Path(text).expanduser()


def root_name(root: str) -> str:
    """Return the last part of a folder's path or of an address: the name of a dataset that has no
    other.
    """
    if is_address(root):
        return root.rstrip("/").rpartition("/")[2]
    return folder_of(root).resolve().name


def _repo_id() -> Any:
    return option(
        None,
        "Dataset as <owner>/<name>: looked for below $HF_LEROBOT_HOME, then on the Hub. With root "
        "it is only a name; null takes the folder's.",
        is_common=True,
    )


def _root() -> Any:
    return option(
        None,
        "Folder of the dataset on this machine, or its address in a store: s3://bucket/folder, "
        "hf://datasets/owner/name, gs://, https://.",
        per_machine=True,
        is_common=True,
    )


def _revision() -> Any:
    return option(None, "Branch, tag or commit of a dataset on the Hub.")


@dataclass(frozen=True, kw_only=True)
class DatasetPlace(Options):
    """The place of a dataset."""

    at: ClassVar[str] = "dataset."

    repo_id: str | None = _repo_id()
    root: str | None = _root()
    revision: str | None = _revision()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_credentials(f"{self.at}root", self.root)
        refuse_revision(self.at, self.root, self.revision)


@dataclass(frozen=True, kw_only=True)
class DatasetChoice(Options):
    """The place of a dataset and a choice of its episodes. The order of fields is LeRobot's."""

    at: ClassVar[str] = "dataset."

    repo_id: str | None = _repo_id()
    root: str | None = _root()
    episodes: list[int] | str | None = option(
        None,
        "Episodes to take, [0,3]; 'available' takes those whose files are on this machine. null "
        "takes all.",
        form=EPISODES,
        least=0,
        is_common=True,
    )
    exclude_episodes: list[int] | None = option(
        None, "Episodes to leave out, [7,12].", least=0, aliases=("exclude",)
    )
    revision: str | None = _revision()

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_credentials(f"{self.at}root", self.root)
        refuse_revision(self.at, self.root, self.revision)
        refuse_repeated(f"{self.at}episodes", self.episodes)
        refuse_repeated(f"{self.at}exclude_episodes", self.exclude_episodes)


def refuse_credentials(name: str, root: str | None) -> None:
    """Refuse an address with credentials, which would be written into configs and logs.

    The message does not repeat them.
    """
    if root is None or not is_address(root):
        return
    parts = urlsplit(root)
    found = "a user or password" if "@" in parts.netloc else ""
    if parts.query or parts.fragment:
        found = "a query, which may hold a signature"
    if found:
        raise ConfigError(
            f"{name}: the address has {found}",
            rule="credentials come from the environment: AWS_PROFILE, HF_TOKEN, KATA_HTTP_TOKEN",
            remedy=f"--{name}={parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
        )


def refuse_revision(at: str, root: str | None, revision: str | None) -> None:
    """Refuse a revision of a folder, which would have no effect."""
    if root is not None and root.startswith("hf://") and revision is not None:
        raise ConfigError(
            f"{at}revision={revision} with {at}root={root}",
            rule="the address of a dataset on the Hub ends with its revision",
            remedy=f"--{at}root={root.partition('@')[0]}@{revision}",
        )
    if root is not None and revision is not None:
        raise ConfigError(
            f"{at}revision={revision} with {at}root={root}",
            rule="a revision belongs to a dataset on the Hub; a folder is taken as it is",
            remedy=f"leave out --{at}revision or --{at}root",
        )


def refuse_repeated(name: str, episodes: list[int] | str | None) -> None:
    """Refuse an episode that is named twice, and an empty list."""
    if episodes is None or isinstance(episodes, str):
        return
    repeated = [number for number, count in Counter(episodes).items() if count > 1]
    if repeated:
        raise ConfigError(
            f"{name}={str(episodes).replace(' ', '')}: {repeated[0]} stands there more than once",
            rule="each episode is named once",
            remedy=f"--{name}={str(list(dict.fromkeys(episodes))).replace(' ', '')}",
        )
    if not episodes:
        raise ConfigError(
            f"{name}=[]", rule="at least one episode", remedy="leave the option out to use all"
        )


def check_concat(concat: Mapping[str, Sequence[str]], name: str) -> None:
    """Refuse a joined column without parts, or with one part twice."""
    for key, parts in concat.items():
        repeated = [part for part, count in Counter(parts).items() if count > 1]
        if repeated or not parts:
            what = f"{repeated[0]} stands there more than once" if repeated else "no parts"
            once = list(dict.fromkeys(parts)) or ["<column>"]
            raise ConfigError(
                f"{name}: {key}: {what}",
                rule="a joined column has one part or more, each once",
                remedy=f"--{name}='{json.dumps({key: once})}'",
            )
