"""Bad datasets are refused with the value that is wrong, the rule, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from kata.data import Dataset, Reader, open_dataset
from kata.data.format.info import file_name
from kata.data.stats.dataset_stats import dataset_stats
from kata.data.storage.store import local_file
from kata.data.video.packet_index import build_index
from kata.errors import DataError
from tests.data.dataset_maker import (
    CAMERA,
    SHARED,
    change_info,
    change_table,
    cut,
    make,
    write_json,
    write_video,
)

VIDEO = f"videos/{CAMERA}/chunk-000/file-001.mp4"
TABLE = "data/chunk-000/file-001.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


def refused(act: Callable[[], Any], *words: str) -> DataError:
    """The DataError of `act`, which says all `words` and has a rule and a remedy."""
    with pytest.raises(DataError) as caught:
        act()
    error = caught.value
    assert error.rule
    assert error.remedy
    for word in words:
        assert word in str(error), f"'{word}' is not in: {error}"
    return error


def read_all(data: Dataset) -> None:
    with Reader(data, {}) as reader:
        reader.read(np.arange(data.num_frames))


def opened(root: Path, **options: Any) -> Callable[[], Any]:
    """Opens a dataset and reads everything."""
    return lambda: read_all(open_dataset("x/y", root=root, **options))


# --- absent
# -----------------------------------------------------------------------------------------------


def test_a_dataset_that_does_not_exist(tmp_path: Path) -> None:
    refused(opened(tmp_path / "nowhere"), "nowhere", "info.json", "--dataset.root")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is absent")
def test_a_partial_download_names_the_remedy() -> None:
    error = refused(opened(SHARED / "g1-bottle"), "90 of 100 episodes", "episode_000000.parquet")
    assert "--dataset.episodes=available" in error.remedy


@pytest.mark.parametrize("name", [VIDEO, TABLE])
def test_files_that_are_absent(tmp_path: Path, name: str) -> None:
    (make(tmp_path) / name).unlink()
    error = refused(opened(tmp_path), "1 of 3 episodes", name)
    assert "available" in error.remedy
    data = open_dataset("x/y", root=tmp_path, episodes="available")
    assert data.episodes.index.tolist() == [0, 1]
    read_all(data)
    read_all(open_dataset("x/y", root=tmp_path, episodes=[1]))


def test_available_without_any_whole_episode(tmp_path: Path) -> None:
    make(tmp_path)
    for path in tmp_path.glob("data/*/*.parquet"):
        path.unlink()
    error = refused(opened(tmp_path, episodes="available"), "3 of 3 episodes")
    assert "available" not in error.remedy


# --- info.json
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[1]", "", "\udcff"])
def test_info_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    make(tmp_path, camera="")
    (tmp_path / "meta/info.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    says = {"": "is empty", "\udcff": "UTF-8"}.get(text, "JSON")
    refused(opened(tmp_path), "info.json", says)


@pytest.mark.parametrize("field", ["codebase_version", "fps", "features"])
def test_info_without_a_field_it_needs(tmp_path: Path, field: str) -> None:
    change_info(make(tmp_path, camera=""), **{field: None})
    refused(opened(tmp_path), "info.json", f"'{field}'")


def test_info_that_lacks_several_fields(tmp_path: Path) -> None:
    change_info(make(tmp_path, camera=""), codebase_version=None, fps=None)
    refused(opened(tmp_path), "info.json", "'codebase_version', 'fps'")


def test_info_of_another_format(tmp_path: Path) -> None:
    change_info(make(tmp_path, camera=""), codebase_version=None, features=None)
    error = refused(opened(tmp_path), "not of a LeRobot dataset", "v3.0, v2.1, v2.0")
    assert "repair" not in error.remedy


def test_tables_without_metadata(tmp_path: Path) -> None:
    (make(tmp_path, camera="") / "meta/info.json").unlink()
    error = refused(opened(tmp_path), "info.json is absent")
    assert "its tables are here" in error.remedy


@pytest.mark.parametrize("version", ["v3.1", "v4.0", "v1.6", "new", 7])
def test_versions_that_kata_does_not_know(tmp_path: Path, version: Any) -> None:
    change_info(make(tmp_path, camera=""), codebase_version=version)
    refused(opened(tmp_path), repr(version), "v3.0, v2.1, v2.0")


@pytest.mark.parametrize("fps", [0, -5, 12.5, "10", True])
def test_a_rate_that_is_no_whole_number(tmp_path: Path, fps: Any) -> None:
    change_info(make(tmp_path, camera=""), fps=fps)
    refused(opened(tmp_path), f"fps {fps!r}")


@pytest.mark.parametrize(
    "path",
    [
        "../{file_index}.parquet",
        "/etc/{file_index}",
        "data/../../x.parquet",
        "..\\{file_index}",
        "C:/x.parquet",
    ],
)
@pytest.mark.parametrize("field", ["data_path", "video_path"])
def test_paths_that_leave_the_dataset(tmp_path: Path, path: str, field: str) -> None:
    change_info(make(tmp_path), **{field: path})
    refused(opened(tmp_path), path, "leaves the dataset's folder")


def test_a_template_that_leaves_the_dataset_when_filled_in() -> None:
    refused(lambda: file_name("{file_index:c}{file_index:c}/x", file_index=46), "../x", "leaves")


@pytest.mark.parametrize(
    "path", ["data/{secret}.parquet", "data/{file_index.real}.parquet", "data/{.parquet", 3]
)
def test_path_templates_with_other_places(tmp_path: Path, path: Any) -> None:
    change_info(make(tmp_path), data_path=path)
    refused(opened(tmp_path), str(path))


@pytest.mark.parametrize(
    ("key", "feature", "word"),
    [
        ("../x", {"dtype": "float32", "shape": [1]}, "'../x'"),
        ("x", {"dtype": "float32"}, "shape None"),
        ("x", {"dtype": "float32", "shape": [0]}, "[0]"),
        ("x", {"dtype": "image", "shape": [3, 4]}, "[3, 4]"),
    ],
)
def test_features_that_make_no_sense(tmp_path: Path, key: str, feature: dict, word: str) -> None:
    refused(opened(make(tmp_path, camera="", extra={key: feature})), word)


# --- selection
# --------------------------------------------------------------------------------------------


def test_unknown_episodes_are_named_with_the_range(tmp_path: Path) -> None:
    make(tmp_path, camera="")
    refused(opened(tmp_path, episodes=[1, 7, -1]), "-1, 7", "0 to 2")
    refused(opened(tmp_path, exclude_episodes=[3]), "3", "0 to 2")
    refused(opened(tmp_path, episodes="some"), "'some'", "available")


def test_a_selection_without_episodes(tmp_path: Path) -> None:
    make(tmp_path, camera="")
    refused(opened(tmp_path, episodes=[]), "the list is empty")
    refused(opened(tmp_path, episodes=[0], exclude_episodes=[0]), "excluded")
    data = open_dataset("x/y", root=tmp_path)
    refused(lambda: data.subset([]), "subset")
    refused(lambda: data.subset([3]), "0 to 2")


# --- tables
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TABLE, EPISODES, "meta/tasks.parquet"])
def test_a_parquet_file_that_is_cut_off(tmp_path: Path, name: str) -> None:
    cut(make(tmp_path) / name, 0.7)
    refused(
        opened(tmp_path), Path(name).name if name != EPISODES else "meta/episodes", "cannot be read"
    )


def test_a_table_with_fewer_rows_than_its_episodes_claim(tmp_path: Path) -> None:
    path = make(tmp_path, camera="") / TABLE
    pq.write_table(pq.read_table(path).slice(0, 3), path)
    refused(opened(tmp_path), TABLE, "3 rows", "episode 2")


def test_rows_that_belong_to_another_episode(tmp_path: Path) -> None:
    path = make(tmp_path, camera="") / EPISODES
    change_table(
        path, lambda t: t.update(dataset_from_index=[0, 4, 12], dataset_to_index=[4, 12, 16])
    )
    refused(opened(tmp_path), "episode 1", "episode 0")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", ["observation.state", "action", "next.reward", "grid"])
def test_numbers_that_are_not_finite(tmp_path: Path, value: float, key: str) -> None:
    def spoil(columns: dict[str, Any]) -> None:
        for row in (1, 2):
            cell = columns[key]
            while isinstance(cell[row if cell is columns[key] else 0], list):
                cell = cell[row if cell is columns[key] else 0]
            cell[row if cell is columns[key] else 0] = value

    change_table(make(tmp_path, camera="") / TABLE, spoil)
    error = refused(opened(tmp_path), f"'{key}'", "2 frames", "episode 2, frame 1")
    assert "exclude_episodes=[2]" in error.remedy
    read_all(open_dataset("x/y", root=tmp_path, exclude_episodes=[2]))


def test_values_that_do_not_have_the_declared_shape(tmp_path: Path) -> None:
    state = {"dtype": "float32", "shape": [4], "names": None}
    make(tmp_path, camera="", extra={"observation.state": state})
    refused(opened(tmp_path), "observation.state", "shape [4]")


def test_values_of_another_kind(tmp_path: Path) -> None:
    change_table(make(tmp_path, camera="") / TABLE, lambda t: t.update({"next.reward": ["a"] * 4}))
    refused(opened(tmp_path), "next.reward", "string", "float32")


def test_empty_values(tmp_path: Path) -> None:
    change_table(
        make(tmp_path, camera="") / TABLE,
        lambda t: t.update({"next.reward": [1.0, None, 2.0, 3.0]}),
    )
    refused(opened(tmp_path), "next.reward", "1 empty")


def test_a_later_file_that_lacks_a_column(tmp_path: Path) -> None:
    change_table(make(tmp_path, camera="") / TABLE, lambda t: t.pop("action"))
    refused(opened(tmp_path), TABLE, "'action'")


def test_an_unknown_task_number(tmp_path: Path) -> None:
    change_table(make(tmp_path, camera="") / TABLE, lambda t: t.update(task_index=[0, 1, 2, 0]))
    refused(opened(tmp_path), "task_index 2", "2 tasks")


def test_episode_tables_that_contradict_themselves(tmp_path: Path) -> None:
    path = make(tmp_path, camera="") / EPISODES
    change_table(path, lambda t: t.update(episode_index=[0, 1, 1]))
    refused(opened(tmp_path), "episode 1 more than once")
    change_table(path, lambda t: t.update(episode_index=[0, 1, 2], dataset_to_index=[5, 5, 16]))
    refused(opened(tmp_path), "episode 1 no frames")
    change_table(path, lambda t: t.pop("dataset_to_index"))
    refused(opened(tmp_path), "'dataset_to_index'")
    path.unlink()
    refused(opened(tmp_path), "meta/episodes")


def test_damaged_json_lines(tmp_path: Path) -> None:
    path = make(tmp_path, version="v2.1", camera="") / "meta/episodes.jsonl"
    path.write_text(path.read_text() + "{")
    refused(opened(tmp_path), "line 4")
    path.write_text('{"episode_index": 0}')
    refused(opened(tmp_path), "line 1", "length")
    path.unlink()
    error = refused(opened(tmp_path), "episodes.jsonl is absent")
    assert "line" not in error.remedy


def test_damaged_statistics(tmp_path: Path) -> None:
    (make(tmp_path, camera="image") / "meta/stats.json").write_text("{")
    refused(lambda: dataset_stats(open_dataset("x/y", root=tmp_path)), "stats.json", "delete")


# --- videos and images
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 0.98])
def test_a_video_that_is_cut_off_is_found_before_the_first_batch(
    tmp_path: Path, share: float
) -> None:
    """Its frame table lies in front, so a decoder would only notice at the missing frames."""
    cut(make(tmp_path) / VIDEO, share)
    data = open_dataset("x/y", root=tmp_path)
    refused(lambda: Reader(data, {}), VIDEO, "complete video")


def test_a_cut_video_is_found_without_its_size_too(tmp_path: Path) -> None:
    path = make(tmp_path, lengths=(9,)) / VIDEO.replace("001", "000")
    assert len(build_index(local_file(path))) == 9
    cut(path, 0.8)
    refused(lambda: build_index(local_file(path)), path.name, "complete video")


def test_a_video_with_fewer_frames_than_its_episodes_claim(tmp_path: Path) -> None:
    path = make(tmp_path) / VIDEO
    write_video(path, [np.zeros((32, 48, 3), np.uint8)] * 3)
    refused(opened(tmp_path), VIDEO, "3 frames", "episode 2", "up to 3")


def test_a_video_of_another_rate_or_with_a_gap(tmp_path: Path) -> None:
    """Frames are counted: a count that does not follow the clock would silently give wrong
    pictures.
    """
    path = make(tmp_path) / VIDEO
    pictures = [np.zeros((32, 48, 3), np.uint8)] * 12
    write_video(path, pictures, rate=30)
    refused(opened(tmp_path), VIDEO, "frame 1 at 0.033 s", "10 fps", "0.100 s")
    write_video(path, pictures, gap_after=2)
    refused(opened(tmp_path), VIDEO, "frame 3 at 0.400 s")


def test_a_video_of_another_size(tmp_path: Path) -> None:
    path = make(tmp_path) / VIDEO
    write_video(path, [np.zeros((64, 48, 3), np.uint8)] * 4)
    refused(opened(tmp_path), CAMERA, "(32, 48, 3)", "(64, 48, 3)")


def test_a_camera_that_does_not_fit_is_found_when_the_reader_is_made(tmp_path: Path) -> None:
    make(
        tmp_path,
        extra={
            CAMERA: {
                "dtype": "video",
                "shape": [32, 48, 1],
                "names": ["height", "width", "channels"],
            }
        },
    )
    data = open_dataset("x/y", root=tmp_path)
    refused(lambda: Reader(data, {}), CAMERA, "(32, 48, 1)", "(32, 48, 3)")


def test_video_data_that_does_not_decode_names_file_camera_and_frame(tmp_path: Path) -> None:
    path = make(tmp_path, lengths=(9,)) / VIDEO.replace("001", "000")
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    data[start:] = b"\x00\x00\x00\x03abc" * ((len(data) - start) // 7) + b"x" * (
        (len(data) - start) % 7
    )
    path.write_bytes(bytes(data))
    refused(opened(tmp_path), "frame ", path.name, CAMERA)  # whichever thread meets a bad one first


def test_a_file_that_is_no_video(tmp_path: Path) -> None:
    path = make(tmp_path) / VIDEO
    path.write_bytes(b"\x00\x00\x00\x10ftypisom\x00\x00\x00\x00")
    refused(opened(tmp_path), VIDEO)


def test_a_codec_that_ffmpeg_does_not_know(tmp_path: Path) -> None:
    path = make(tmp_path) / VIDEO
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzz9"))
    refused(opened(tmp_path), VIDEO, "codec")


@pytest.mark.parametrize("cell", [b"no image", None])
def test_an_image_that_does_not_decode(tmp_path: Path, cell: bytes | None) -> None:
    path = make(tmp_path, camera="image") / TABLE
    change_table(path, lambda t: t[CAMERA].__setitem__(2, {"bytes": cell, "path": "x"}))
    refused(opened(tmp_path), CAMERA, "row 2", TABLE)


def test_an_image_of_another_size(tmp_path: Path) -> None:
    shape = {"dtype": "image", "shape": [16, 48, 3], "names": ["height", "width", "channels"]}
    refused(
        opened(make(tmp_path, camera="image", extra={CAMERA: shape})),
        CAMERA,
        "(16, 48, 3)",
        "(32, 48, 3)",
    )


def test_a_camera_column_without_images(tmp_path: Path) -> None:
    path = make(tmp_path, camera="image") / TABLE
    change_table(path, lambda t: t.update({CAMERA: [1, 2, 3, 4]}))
    refused(opened(tmp_path), CAMERA, "int64")


def test_messages_show_value_rule_and_remedy(tmp_path: Path) -> None:
    write_json(tmp_path / "meta/info.json", json.loads("{}"))
    text = str(refused(opened(tmp_path), "codebase_version"))
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == ["rule", "remedy"]
