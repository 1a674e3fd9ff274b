"""Images of 16 bits, as depth maps are stored, are left out with a note and copied as they are;
never clipped.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kata.cli import main
from kata.data import Reader, open_dataset
from kata.data.parquet.images import is_deep
from kata.data.storage.store import StoredFile
from kata.errors import FrameError
from tests.data.dataset_maker import CAMERA, change_table, make, picture
from tests.data.far_store import FarStore

DEPTH = "observation.images.depth"


def millimetres(number: int) -> dict[str, Any]:
    depth = np.full((32, 48), 700 + number, np.uint16)
    data = io.BytesIO()
    Image.fromarray(depth).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": "depth.png"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shape = {"dtype": "image", "shape": [32, 48, 1], "names": ["height", "width", "channels"]}
    root = make(tmp_path / "set", version="v2.1", camera="image", extra={DEPTH: shape})
    for path in root.glob("data/*/*.parquet"):
        change_table(
            path, lambda t: t.update({DEPTH: [millimetres(k) for k in range(len(t["index"]))]})
        )
    return root


def test_they_are_left_out_with_a_note(root: Path) -> None:
    data = open_dataset("x/y", root=root)
    assert DEPTH not in data.columns
    assert [note for note in data.notes if "more than 8 bits" in note and DEPTH in note]
    with Reader(data, {}) as reader:
        np.testing.assert_array_equal(reader.read(np.array([1]))[CAMERA][0], picture(0, 1))


@pytest.mark.parametrize(
    "args",
    [
        ["info", "{root}"],
        ["check", "{root}", "--decode"],
        ["stats", "{root}", "--images=all"],
        ["view", "{root}", "--out={out}.png"],
        ["convert", "{root}", "--out={out}"],
    ],
)
def test_every_verb_says_so(
    root: Path, tmp_path: Path, args: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *(arg.format(root=root, out=tmp_path / "out") for arg in args)]) == 0
    out, err = capfd.readouterr()
    assert f"'{DEPTH}'" in out + err
    if args[0] == "convert":
        before = [
            cell
            for path in sorted(root.glob("data/*/*.parquet"))
            for cell in pq.read_table(path)[DEPTH]
        ]
        after = list(pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")[DEPTH])
        assert [cell.as_py()["bytes"] for cell in after] == [
            cell.as_py()["bytes"] for cell in before
        ]


def test_one_among_others_is_a_bad_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make(tmp_path, camera="image")
    table = sorted(root.glob("data/*/*.parquet"))[0]
    change_table(table, lambda t: t[CAMERA].__setitem__(2, millimetres(2)))
    with (
        Reader(open_dataset("x/y", root=root), {}) as reader,
        pytest.raises(FrameError, match="8 bits per channel"),
    ):
        reader.read(np.arange(5))
    assert main(["data", "check", str(root), "--decode"]) == 1
    assert "episode 0, frame 2: " in capsys.readouterr().out


def noise_png(mode: str, side: int) -> dict[str, Any]:
    """An image that does not get smaller, so that snappy stores it as it is."""
    draws = np.random.default_rng(0).integers(0, 2**16, (side, side), np.uint16)
    pixels = draws if mode == "I;16" else (draws >> 8).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.mark.parametrize("compression", ["snappy", "none", "zstd"])
@pytest.mark.parametrize("is_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("mode", ["I;16", "L"])
def test_a_far_files_first_image_tells(
    mode: str, version: str, is_dictionary: bool, compression: str, tmp_path: Path
) -> None:
    cells = [None, *(noise_png(mode, side) for side in (1200, 300, 40))]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(
        pa.table({CAMERA: pa.array(cells, kind)}),
        tmp_path / "t.parquet",
        use_dictionary=is_dictionary,
        compression=compression,
        data_page_version=version,
    )
    store = FarStore(tmp_path)
    assert is_deep(StoredFile(store, "t.parquet"), CAMERA, 2) == (mode == "I;16")
    if compression == "none":
        # Three for the footer and three for the first page, if its header is a long one.
        assert len(store.read) <= 6
        assert store.bytes_read < len(cells[1]["bytes"]) / 2
    assert not is_deep(StoredFile(store, "t.parquet"), "no such camera", 0)
