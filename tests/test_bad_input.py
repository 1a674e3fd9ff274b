"""Each mistake gets one message with value, rule and remedy, exit status 2, no traceback, and
leaves nothing behind.
"""

import io
import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.cli import main
from tests.conftest import TINY_ACT


@pytest.fixture
def dataset(tiny_dataset, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_dataset, tmp_path / "data"))


def refused(capsys, root: Path, out: Path, *more: str) -> str:
    """Run `kata train`, see it refused with nothing written, and return the message."""
    before = out.exists()
    status = main(
        [
            "train",
            f"--dataset.root={root}",
            "--dataset.repo_id=tests/tiny",
            *TINY_ACT,
            f"--output_dir={out}",
            *more,
        ]
    )
    said = capsys.readouterr().err
    assert status == 2, said
    assert said.startswith("kata: ")
    assert "rule:" in said
    assert "remedy:" in said
    assert "Traceback" not in said
    assert out.exists() == before
    return said


def refused_verb(capsys, *words: str) -> str:
    """Run a verb, see it refused with one message, and return that."""
    status = main(list(words))
    said = capsys.readouterr().err
    assert status == 2, said
    assert said.count("rule:") == 1
    assert said.count("remedy:") == 1
    assert "Traceback" not in said
    return said


CLOSED = (
    ("data/chunk-000/file-000.parquet", ("data", "stats", "{data}")),
    ("meta/info.json", ("data", "info", "{data}")),
    ("meta", ("data", "check", "{data}")),
    ("meta/episodes/chunk-000/file-000.parquet", ("data", "info", "{data}")),
    ("videos", ("data", "view", "{data}", "--episode=0", "--out={out}/v.png")),
)


@pytest.mark.parametrize(("closed", "words"), CLOSED)
@pytest.mark.usefixtures("mere_user")
def test_a_closed_file_is_one_message_about_permission(
    closed, words, dataset, tmp_path, capsys
) -> None:
    (dataset / closed).chmod(0)
    try:
        said = refused_verb(capsys, *(word.format(data=dataset, out=tmp_path) for word in words))
    finally:
        (dataset / closed).chmod(0o755)
    assert "Permission denied" in said
    assert "change its owner or permissions" in said
    assert str(dataset) in said


@pytest.mark.parametrize(
    "words",
    [
        ("data", "split", "{data}", "--episodes=[0]", "--out={out}/c"),
        ("data", "demo", "{out}/d", "--episodes=1"),
        ("data", "repair", "{data}", "--out={out}/c"),
        ("data", "view", "{data}", "--episode=0", "--out={out}/v.png"),
    ],
)
@pytest.mark.usefixtures("mere_user")
def test_a_closed_folder_for_the_result_is_one_message(words, dataset, tmp_path, capsys) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    said = refused_verb(capsys, *(word.format(data=dataset, out=closed) for word in words))
    assert str(closed) in said
    assert not any(closed.iterdir())


def test_what_no_file_explains_keeps_its_traceback(monkeypatch) -> None:
    def broken(verb, args, path):
        raise OSError(5, "no file is named")

    monkeypatch.setattr("kata.cli.run_verb", broken)
    with pytest.raises(OSError, match="no file"):
        main(["data", "info", "x"])


def test_a_terminal_without_the_letters_of_a_task_gets_their_numbers(dataset, monkeypatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", terminal)
    path = next((dataset / "meta").glob("tasks.parquet"))
    table = pq.read_table(path)
    tasks = pa.array(["Räume 方块", *table["task"].to_pylist()[1:]])
    pq.write_table(table.set_column(table.column_names.index("task"), "task", tasks), path)
    assert main(["data", "info", str(dataset)]) == 0
    terminal.flush()
    assert "Räume \\u65b9\\u5757" in terminal.buffer.getvalue().decode("latin-1")


def first(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[0]


def edit_info(root: Path, **changes) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_column(root: Path, key: str, change) -> None:
    path = first(root, "data/*/*.parquet")
    table = pq.read_table(path)
    values = np.array(table[key].to_pylist())
    change(values)
    column = pa.array(values.tolist(), type=table.schema.field(key).type)
    pq.write_table(
        table.set_column(table.schema.get_field_index(key), table.schema.field(key), column), path
    )


def cut(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])


def poison(value):
    def change(values):
        values[3, 1] = value

    return change


DAMAGES = {
    "info.json is no JSON": (lambda r: (r / "meta/info.json").write_text("{"), "info.json"),
    "a newer version": (lambda r: edit_info(r, codebase_version="v9.1"), "v9.1"),
    "info.json lacks features": (lambda r: edit_info(r, features={}), "features"),
    "a parquet is missing": (lambda r: first(r, "data/*/*.parquet").unlink(), "parquet"),
    "a parquet is cut": (lambda r: cut(first(r, "data/*/*.parquet"), 0.6), "parquet"),
    "an mp4 is missing": (lambda r: first(r, "videos/*top/*/*.mp4").unlink(), "episode"),
    "an mp4 is cut": (lambda r: cut(first(r, "videos/*top/*/*.mp4"), 0.6), "mp4"),
    "an mp4 is empty": (lambda r: first(r, "videos/*top/*/*.mp4").write_bytes(b""), "mp4"),
    "a NaN in the state": (
        lambda r: edit_column(r, "observation.state", poison(np.nan)),
        "observation.state",
    ),
    "infinity in the action": (lambda r: edit_column(r, "action", poison(np.inf)), "action"),
    "paths that leave the folder": (
        lambda r: edit_info(r, data_path="../{chunk_index}/{file_index}.parquet"),
        "..",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_dataset_is_refused(capsys, dataset, tmp_path, name):
    damage, expected = DAMAGES[name]
    damage(dataset)
    assert expected in refused(capsys, dataset, tmp_path / "run")


def test_fewer_frames_than_episodes_claim(capsys, dataset, tmp_path):
    path = first(dataset, "data/*/*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - 5), path)
    assert "row" in refused(capsys, dataset, tmp_path / "run")


def test_a_video_shorter_than_its_episodes(capsys, dataset, tmp_path):
    shorter = sorted(dataset.glob("videos/*wrist/*/*.mp4"))
    longer = sorted(dataset.glob("videos/*top/*/*.mp4"))
    assert len(shorter) == len(longer) == 1
    from tests.data.dataset_maker import write_video

    write_video(longer[0], np.zeros((20, 48, 64, 3), dtype=np.uint8))
    assert "20" in refused(capsys, dataset, tmp_path / "run")


OPTIONS = {
    "no such dataset": (["--dataset.root=/nowhere/at/all"], "/nowhere/at/all"),
    "an unknown episode": (["--dataset.episodes=[0,77]"], "77"),
    "an empty selection": (["--dataset.exclude_episodes=[0,1,2,3,4,5]"], "episode"),
    "a batch larger than the dataset": (["--batch_size=88"], "--batch_size=87"),
    "an unknown flag": (["--stpes=3"], "did you mean --steps"),
    "no steps": (["--steps=0"], "steps=0"),
    "a camera that is not there": (
        ['--policy.input_features={"observation.images.topp": ' '{"type": ' '"VISUAL", ' '"shape": ' '[3, ' '48, ' '64]}}'],  # noqa: E501
        "did you mean 'observation.images.top'",
    ),
    "a state of another size": (
        ['--policy.input_features={"observation.state": {"type": "STATE", "shape": [7]}, '
         '"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}}'],
        "dataset has (3,)",
    ),
    "a rename of an unknown key": (['--rename_map={"observation.images.tp": "x"}'], "did you mean"),
    "weights that cannot be had": (["--policy.pretrained_backbone_weights=ResNet18_Weights.IMAGENET1K_V1"], "null"),  # noqa: E501
    "a device that is not there": (["--policy.device=cuda:9"], "cuda:9"),
    "fp16 on a CPU": (["--accelerator.mixed_precision=fp16"], "fp16"),
    "a split that leaves nothing": (["--dataset.episodes=[0]", "--dataset.eval_split=0.5"], "eval_split"),  # noqa: E501
    "a tracker that is not installed": (["--trackio.enable=true"], "trackio"),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_refused(capsys, monkeypatch, tiny_dataset, tmp_path, name):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "no-weights"))
    more, expected = OPTIONS[name]
    assert expected in refused(capsys, tiny_dataset, tmp_path / "run", *more)


def test_an_output_folder_that_exists(capsys, tiny_dataset, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    assert "--resume=true" in refused(capsys, tiny_dataset, out)
    assert [p.name for p in out.iterdir()] == ["mine.txt"]


def test_an_output_folder_that_cannot_be_written(capsys, tiny_dataset, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, tiny_dataset, tmp_path / "file" / "run")


def test_too_little_space_for_one_checkpoint(capsys, monkeypatch, tiny_dataset, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 10**6, 10**6))
    assert "checkpoint" in refused(capsys, tiny_dataset, tmp_path / "run")


def test_a_checkpoint_of_another_policy(capsys, tiny_dataset, tmp_path):
    folder = tmp_path / "pretrained_model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"type": "diffusion"}))
    assert "diffusion" in refused(
        capsys, tiny_dataset, tmp_path / "run", f"--policy.pretrained_path={folder}"
    )


def test_weights_of_another_size(
    capsys, tiny_args, tiny_dataset, tmp_path, narrow_backbone, plain_charts
):
    assert main(["train", *tiny_args, "--steps=1"]) == 0
    capsys.readouterr()
    folder = tmp_path / "run/checkpoints/last/pretrained_model"
    more = (f"--policy.pretrained_path={folder}", "--policy.dim_model=32")
    assert "of another shape" in refused(capsys, tiny_dataset, tmp_path / "other", *more)


def test_debug_shows_the_traceback(tiny_args):
    from kata.errors import ConfigError

    with pytest.raises(ConfigError):
        main(["train", *tiny_args, "--steps=0", "--debug"])


def test_an_unknown_verb_names_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err
