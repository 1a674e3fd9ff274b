"""`kata data view`: a picture of one episode."""

from __future__ import annotations

import logging

from kata.data.commands.options import ViewOptions, source_of
from kata.data.commands.output import new_file, write_whole
from kata.data.dataset.dataset import open_source
from kata.data.format.selection import choose

_say = logging.getLogger(__name__).info


def main(options: ViewOptions) -> int:
    """Draw the episode and write the file."""
    dataset = options.dataset
    source = source_of(dataset)
    target = new_file("out", options.out, dataset=source.root, overwrite=options.overwrite)
    data = open_source(
        source,
        episodes=[options.episode] if dataset.episodes is None else dataset.episodes,
        exclude_episodes=dataset.exclude_episodes,
    )
    data = data.subset(choose(data.repo_id, data.episodes.index, [options.episode], None).tolist())
    from kata.data.inspect.episode_view import page, png, read_sheet

    for note in data.notes:
        _say("%s", note)

    sheet = read_sheet(data, options.frames)
    write_whole(target, png(sheet) if target.suffix.lower() == ".png" else page(sheet))
    print(f"episode {options.episode} in {target}")
    return 0
