"""Columns kept on disk: equal to the files, made anew when these change, shared by processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data import Dataset, open_dataset
from kata.data.dataset import columns
from kata.data.format.episode_table import TaskLists
from kata.errors import DataError
from tests import forked
from tests.data.dataset_maker import change_table, make

TEXT = {"instruction": {"dtype": "string", "shape": [1], "names": None}}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dataset(root: Path, version: str = "v3.0", lengths: tuple[int, ...] = (5, 7, 4, 6)) -> Path:
    make(root, version=version, camera="", lengths=lengths, extra=TEXT)
    for path in sorted((root / "data").glob("**/*.parquet")):
        change_table(path, lambda t: t.update(instruction=[f"say {k % 3}" for k in t["index"]]))
    return root


def plain(path: Path, change: Callable[[dict], None] = lambda table: None) -> None:
    """Rewrite a file so that equal rows take equally many bytes."""
    table = pq.read_table(path).to_pydict()
    change(table)
    pq.write_table(pa.table(table), path, compression="none", use_dictionary=False)


def everything(data: Dataset) -> dict[str, np.ndarray]:
    return {key: data.column(key) for key in data.columns}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key, values in one.items():
        assert values.dtype == other[key].dtype
        np.testing.assert_array_equal(values, other[key], err_msg=key)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_a_later_opening_reads_no_data_file_and_finds_the_same(
    tmp_path: Path, cache: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = dataset(tmp_path / "set", version)
    first = everything(open_dataset("x/y", root=root))
    monkeypatch.setattr(columns, "_read_table", lambda *_: pytest.fail("read again"))
    equal(everything(open_dataset("x/y", root=root)), first)
    assert first["instruction"].tolist() == [f"say {k % 3}" for k in range(22)]
    assert len(list(cache.glob("columns/*.bin"))) == 1
    assert {path.name for path in root.iterdir()} == {"meta", "data"}


def test_rows_are_those_of_the_files_for_every_selection(tmp_path: Path, cache: Path) -> None:
    root = dataset(tmp_path / "set")
    whole = everything(open_dataset("x/y", root=root))
    rows = np.array([[0, 8], [9, 3]])
    for chosen in ([0, 2, 3], [1, 3], [3]):
        parts = (
            open_dataset("x/y", root=root, episodes=chosen),
            open_dataset("x/y", root=root).subset(chosen),
        )
        kept = np.isin(whole["episode_index"], chosen)
        for part in (*parts, parts[1].subset(range(len(chosen)))):
            for key, values in whole.items():
                np.testing.assert_array_equal(part.column(key), values[kept])
                at = rows % part.num_frames
                np.testing.assert_array_equal(part.take(key, at), values[kept][at])
            with pytest.raises(IndexError):
                part.take("action", np.array([part.num_frames]))


def test_one_changed_byte_makes_the_columns_anew(tmp_path: Path, cache: Path) -> None:
    root = dataset(tmp_path / "set")
    path = root / "data/chunk-000/file-001.parquet"
    plain(path)
    before = open_dataset("x/y", root=root).column("observation.state").copy()
    raw = path.read_bytes()
    value = np.float64(before[12, 0])
    assert value.tobytes() in raw
    path.write_bytes(raw.replace(value.tobytes(), (value + 8).tobytes()))
    assert path.stat().st_size == len(raw)
    after = open_dataset("x/y", root=root).column("observation.state")
    assert after[12, 0] == value + 8
    np.testing.assert_array_equal(after[:12], before[:12])


def test_the_same_size_and_time_with_other_bytes_is_another_file(
    tmp_path: Path, cache: Path
) -> None:
    root = dataset(tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    plain(path)
    size, time = path.stat().st_size, path.stat().st_mtime_ns
    before = open_dataset("x/y", root=root).column("action").copy()
    plain(path, lambda t: t.update(action=[[-a, b] for a, b in t["action"]]))
    assert path.stat().st_size == size
    os.utime(path, ns=(time, time))
    assert (open_dataset("x/y", root=root).column("action") != before).any()


def test_a_damaged_file_of_columns_is_made_anew(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = dataset(tmp_path / "set")
    first = everything(open_dataset("x/y", root=root))
    kept = next(cache.glob("columns/*.bin"))
    kept.write_bytes(kept.read_bytes()[:-1])
    equal(everything(open_dataset("x/y", root=root)), first)
    assert [record.message for record in caplog.records] == [f"{kept} is damaged; it is made again"]


def test_without_a_folder_to_write_columns_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = dataset(tmp_path / "set")
    first = everything(open_dataset("x/y", root=root))
    (tmp_path / "file").touch()
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "file" / "cache"))
    equal(everything(open_dataset("x/y", root=root)), first)
    assert len(caplog.records) == 1
    assert "KATA_CACHE" in caplog.text


def test_refused_data_are_not_kept(tmp_path: Path, cache: Path) -> None:
    root = dataset(tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    change_table(path, lambda t: t["action"].__setitem__(3, [float("nan"), 0.0]))
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"NaN or infinite in 1 frames, first in episode 0, frame 3"
        ):
            open_dataset("x/y", root=root).column("index")
    assert not list(cache.glob("columns/*.bin*"))
    assert open_dataset("x/y", root=root, exclude_episodes=[0]).column("index").tolist() == list(
        range(5, 22)
    )


def open_actions(root: Path) -> None:
    """Print the sum of the actions, and whether tables were read for it."""
    made, read = list[int](), columns._read_table
    columns._read_table = lambda *args: made.append(1) or read(*args)
    print(open_dataset("x/y", root=root).column("action").sum(), bool(made))


def test_processes_that_open_at_once_make_the_columns_once(tmp_path: Path, cache: Path) -> None:
    root = dataset(tmp_path / "set", lengths=(50,) * 6)
    files = [tmp_path / "one", tmp_path / "two"]
    team = forked.Team([forked.start(open_actions, [root], file) for file in files], files)
    assert team.ended() == [0, 0]
    said = [team.said(index).split() for index in (0, 1)]
    assert {total for total, _ in said} == {
        str(open_dataset("x/y", root=root).column("action").sum())
    }
    assert sorted(made for _, made in said) == ["False", "True"]


def test_sentences_of_episodes_cost_two_arrays() -> None:
    lists = [("pick", "place"), (), ("place",), ("pick",), ()]
    tasks = TaskLists.of(lists)
    assert list(tasks) == lists
    assert len(tasks) == 5
    chosen = np.array([4, 0, 2, 2])
    assert list(tasks.take(chosen)) == [lists[k] for k in chosen]
    assert tasks.first().tolist() == [0, -1, 1, 0, -1]
    assert list(TaskLists.of([])) == []
    assert TaskLists.of([(), ()]).first().tolist() == [-1, -1]
