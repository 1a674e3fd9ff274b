"""The options of a mixture: which datasets, in which shares. Torch-free."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kata.errors import ConfigError, did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STATISTICS = ("joint", "each")


@dataclass(frozen=True, kw_only=True)
class MixEntry:
    """One dataset of a mixture. `repo_id`, `root`, `revision`, `episodes` and `exclude_episodes` as for one dataset.

    name: in tables, metrics and folders; the repo_id after its '/' where it is left out. weight: its share of the
    samples, in proportion to the other weights; null in every entry shares by the number of samples. rename_map: the
    dataset's keys to the mixture's. fill: cameras that it lacks are black and marked.
    """

    repo_id: str
    root: str | None = None
    revision: str | None = None
    name: str | None = None
    weight: float | None = None
    episodes: list[int] | str | None = None
    exclude_episodes: list[int] | None = None
    rename_map: dict[str, str] = field(default_factory=dict)
    fill: bool = False

    @property
    def called(self) -> str:
        """The name in tables, metrics and folders."""
        return self.name or self.repo_id.rpartition("/")[2]


def check_entries(entries: Sequence[MixEntry]) -> None:
    """ConfigError unless names differ and weights are positive numbers, or left out everywhere."""
    if not entries:
        raise ConfigError(
            "dataset.mix=[]", rule="at least one dataset", remedy="list {repo_id: …, weight: …}, or use dataset.repo_id"
        )
    names = [entry.called for entry in entries]
    for number, (entry, name) in enumerate(zip(entries, names, strict=True)):
        at = f"dataset.mix[{number}]"
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{at}.name={name!r}",
                rule="letters, digits, '.', '_' and '-', for it names folders and metrics",
                remedy=f"add name: dataset{number}",
            )
        if names.index(name) < number:
            raise ConfigError(
                f"{at} and dataset.mix[{names.index(name)}] are both called {name}",
                rule="each dataset of a mixture has a name of its own",
                remedy=f"add name: {name}-{number} to one of them",
            )
        if entry.weight is not None and not (math.isfinite(entry.weight) and entry.weight > 0):
            raise ConfigError(
                f"{at}.weight={entry.weight} ({name})",
                rule="a positive number",
                remedy="remove the entry to leave the dataset out" if entry.weight == 0 else "for example weight: 0.5",
            )
    lacking = [name for entry, name in zip(entries, names, strict=True) if entry.weight is None]
    if lacking and len(lacking) < len(entries):
        raise ConfigError(
            f"dataset.mix: {', '.join(lacking)} without a weight, {len(entries) - len(lacking)} with one",
            rule="all have a weight, or none has (the shares then follow the number of samples)",
            remedy="give each a weight",
        )


def check_choices(entries: Sequence[MixEntry], stats: str, primary: str | None) -> None:
    """ConfigError for unknown statistics or a primary that is not in the mixture."""
    if stats not in STATISTICS:
        raise ConfigError(
            f"dataset.mix_stats={stats}",
            rule=f"one of: {', '.join(STATISTICS)}",
            remedy=did_you_mean(stats, STATISTICS),
        )
    names = [entry.called for entry in entries]
    if primary is not None and primary not in names:
        raise ConfigError(
            f"dataset.mix_primary={primary}", rule="a dataset of the mixture", remedy=did_you_mean(primary, names)
        )


def check_clips(clips: Sequence[Sequence[int]] | None, datasets: int, of_one: Sequence[int]) -> None:
    """ConfigError unless there are three numbers for each dataset, or none yet. of_one: those of a single dataset."""
    if any(of_one):
        raise ConfigError(
            f"dataset.clip_pool, clip_frames, clip_gop = {list(of_one)}",
            rule="these numbers belong to one dataset; a mixture has dataset.mix_clips, three for each of its datasets",
            remedy="leave them out: they are derived and written down",
        )
    if clips is not None and (len(clips) != datasets or not all(map(_is_clip_order, clips))):
        raise ConfigError(
            f"dataset.mix_clips={[list(each) for each in clips]}",
            rule=f"for each of {datasets} datasets clips alive at a time, frames, group (a divisor); zeros: full order",
            remedy="leave the option out: they are derived and written down",
        )


def _is_clip_order(numbers: Sequence[int]) -> bool:
    if len(numbers) != 3:
        return False
    return not any(numbers) or (min(numbers) > 0 and numbers[1] % numbers[2] == 0)
