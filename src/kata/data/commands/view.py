"""`kata data view`: a picture of one episode."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kata.data.commands.options import Place, option, resolve
from kata.data.commands.output import new_file, write_whole
from kata.data.dataset.dataset import open_dataset
from kata.errors import ConfigError

_say = logging.getLogger(__name__).info
_ENDINGS = (".png", ".html")
_FRAMES_MAX = 40


@dataclass(frozen=True)
class ViewOptions(Place):
    """Options of `kata data view`."""

    episode: int = option(0, "which episode")
    out: str | None = option(None, "the new file: .png, or .html that needs no other file")
    frames: int = option(8, "how many frames of each camera, evenly spread over the episode")
    overwrite: bool = option(False, "the file of --out may exist")


def main(args: Sequence[str]) -> int:
    """Draw the episode and write the file."""
    options = resolve(
        ViewOptions, args, "kata data view <folder> --episode=<number> --out=<file>.png [options]"
    )
    if options is None:
        return 0
    if options.out is None:
        raise ConfigError(
            "out: not given", rule="a view needs a file", remedy="add --out=episode.png or .html"
        )
    if not 1 <= options.frames <= _FRAMES_MAX:
        raise ConfigError(
            f"frames={options.frames}",
            rule=f"1 to {_FRAMES_MAX} frames",
            remedy="for example --frames=8",
        )
    root = options.source().root
    target = new_file(
        "out", options.out, dataset=root, overwrite=options.overwrite, endings=_ENDINGS
    )
    data = open_dataset(
        options.repo_id or root.name,
        root=options.root,
        episodes=[options.episode],
        revision=options.revision,
    )
    from kata.data.inspect.episode_view import page, png, read_sheet

    for note in data.notes:
        _say("%s", note)

    sheet = read_sheet(data, options.frames)
    write_whole(target, png(sheet) if target.suffix.lower() == ".png" else page(sheet))
    print(f"episode {options.episode} in {target}")
    return 0
