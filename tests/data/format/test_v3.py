"""Files of format v3.0 are numbered over chunks, end before their limit, and are found again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kata.data.format import v3
from kata.data.format.flatten import flat_column
from kata.data.format.v3 import DATA_PATH, VIDEO_PATH, FileSeries, feature_entry, info_json
from kata.spec import Column


def test_files_are_numbered_over_chunks():
    series = FileSeries(VIDEO_PATH, 1, chunks_size=2, camera="observation.images.top")
    names: list[str] = []
    for _ in range(3):
        names.append(series.name)
        series.next_file()
    folder = "videos/observation.images.top"
    assert names == [
        f"{folder}/chunk-000/file-000.mp4",
        f"{folder}/chunk-000/file-001.mp4",
        f"{folder}/chunk-001/file-000.mp4",
    ]
    assert series.columns() == {f"{folder}/chunk_index": 1, f"{folder}/file_index": 1}


@pytest.mark.parametrize(
    ("held", "more", "has_room"), [(0, 500, True), (60, 39, True), (60, 40, False)]
)
def test_a_file_ends_before_its_limit_unless_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, held: int, more: int, has_room: bool
) -> None:
    monkeypatch.setattr(v3, "_MB", 1)
    series = FileSeries(DATA_PATH, 100)
    series.held_bytes = held
    assert series.has_room(more) is has_room


def test_a_series_continues_behind_the_files_of_a_table():
    series = FileSeries(DATA_PATH, 1, chunks_size=10)
    for row in ({"data/chunk_index": 1, "data/file_index": 2}, {"length": 3}):
        series.skip(row)
    assert series.number == 13


def test_a_dataset_without_videos_declares_no_path_of_videos():
    entry = feature_entry(Column("image", (4, 6, 3)))
    assert entry == {
        "dtype": "image",
        "shape": [4, 6, 3],
        "names": ["height", "width", "channels"],
    }
    assert info_json(fps=5, features={"a": entry}, robot_type=None)["video_path"] is None
    video = entry | {"dtype": "video"}
    assert info_json(fps=5, features={"a": video}, robot_type=None)["video_path"] == VIDEO_PATH


def test_empty_places_are_counted_on_every_level():
    chunks = pa.chunked_array([[[1.0, None]], [None, [2.0, 3.0]]])
    values, empty = flat_column(chunks)
    assert values.to_pylist() == [1.0, None, 2.0, 3.0]
    assert empty == 2
