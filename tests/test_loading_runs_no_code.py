"""Files that others may have written are read as data: nothing in them runs, and no name in them
leads elsewhere.
"""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from kata.cli import main
from kata.config import read_config
from kata.data import Reader, open_dataset
from kata.data.stats.dataset_stats import dataset_stats
from kata.errors import CheckpointError, ConfigError, DataError, PolicyError
from kata.log import redacted
from kata.policies.act.backbone import build_backbone
from kata.policies.act.config import Config
from kata.processors import load_pipeline
from kata.run import read_policy_config, resolve_run
from kata.train.evaluation.env_eval import WORKER, newest_strips
from tests.conftest import TINY_ACT
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, change_info, change_table, make


class Bomb:
    """An object that makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def marker(tmp_path):
    """The file that must not be there after a load."""
    path = tmp_path / "it-ran"
    yield path
    assert not path.exists(), "code in a file was run"


def pickled(marker, *, by_torch: bool = False) -> bytes:
    """The bomb as pickle or torch writes it."""
    whole = io.BytesIO()
    if by_torch:
        torch.save({"weight": Bomb(marker)}, whole)
    else:
        pickle.dump({"weight": Bomb(marker)}, whole, protocol=2)
    return whole.getvalue()


def test_the_bomb_works(tmp_path):
    pickle.loads(pickled(tmp_path / "ran"))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_pickle_that_calls_itself_safetensors(capsys, vector_run, tmp_path, marker, by_torch):
    from kata.train import train

    run = vector_run("--steps=1")
    checkpoint = train(run).folder / "checkpoints" / "last"
    (checkpoint / "pretrained_model" / "model.safetensors").write_bytes(
        pickled(marker, by_torch=by_torch)
    )
    asked = [
        f"--dataset.root={run.dataset.root}",
        "--dataset.repo_id=x/y",
        f"--policy.path={checkpoint}",
    ]
    assert main(["train", *asked, f"--output_dir={tmp_path}/other"]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    (checkpoint / "training_state" / "optimizer_state.safetensors").write_bytes(pickled(marker))
    (checkpoint / "training_state" / "training_step.json").write_bytes(pickled(marker))
    with pytest.raises(CheckpointError):
        train(vector_run("--steps=1", "--resume=true"))


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_pickle_among_the_backbones_of_the_cache(monkeypatch, tmp_path, marker, by_torch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    (cache / "resnet18-f37072fd.pth").write_bytes(pickled(marker, by_torch=by_torch))
    with pytest.raises(PolicyError, match="resnet18"):
        build_backbone(Config(pretrained_backbone_weights="ResNet18_Weights.IMAGENET1K_V1"))


def test_a_pickle_among_the_frames_of_an_evaluation(tmp_path, marker):
    home = tmp_path / "evaluations" / "000001"
    home.mkdir(parents=True)
    with (home / "strips.npz").open("wb") as file:
        np.savez(file, episode_0=np.array([Bomb(marker)], dtype=object))
    result = {"strips": "../../elsewhere/strips.npz", "episodes": [{"episode": 0, "success": True}]}
    (home / "eval.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="allow_pickle"):
        newest_strips(tmp_path)


def test_a_pickle_that_calls_itself_statistics(tmp_path, marker):
    root = make(tmp_path / "data")
    for name in ("stats.json", "info.json"):
        (root / "meta" / name).write_bytes(pickled(marker))
        with pytest.raises(DataError, match=name):
            dataset_stats(open_dataset("x/y", root=root))


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_config_that_names_a_call(tmp_path, marker, suffix):
    path = tmp_path / f"config.{suffix}"
    path.write_text(f"seed: !!python/object/apply:os.mkdir [{marker}]\n")
    with pytest.raises(ConfigError):
        read_config(path)
    for flag in (
        f"--seed=!!python/object/apply:os.mkdir [{marker}]",
        f"--env.kwargs={{a: !!python/object/apply:os.mkdir [{marker}]}}",
        f"--dataset.episodes=[!!python/object/apply:os.mkdir [{marker}]]",
    ):
        with pytest.raises(ConfigError):
            resolve_run(["--policy.type=act", "--dataset.repo_id=a/b", "--env.type=kata", flag])


@pytest.mark.parametrize(
    "template",
    [
        "../data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "/data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "data/..\\..\\{chunk_index}-{file_index}.parquet",
        "C:/data/{chunk_index}-{file_index}.parquet",
        "data/{chunk_index.__class__}-{file_index}.parquet",
        "data/{chunk_index:{video_key.__class__}}.parquet",
        "data/{chunk_index:999999999}.parquet",
    ],
)
@pytest.mark.parametrize("field", ["data_path", "video_path"])
def test_a_path_template_that_leads_elsewhere(tmp_path, field, template):
    root = make(tmp_path / "data")
    change_info(root, **{field: template})
    with pytest.raises(DataError, match=field):
        open_dataset("x/y", root=root)


@pytest.mark.parametrize("name", ["../observation.images.top", "/tmp/camera", "a\\b"])
def test_a_camera_whose_name_leads_elsewhere(tmp_path, name):
    root = make(tmp_path / "data")
    info = json.loads((root / "meta" / "info.json").read_text())
    change_info(root, features={**info["features"], name: info["features"][CAMERA]})
    with pytest.raises(DataError, match="names of features"):
        open_dataset("x/y", root=root)


def test_a_file_number_that_is_a_path(tmp_path):
    root = make(tmp_path / "data")

    def change(columns):
        columns["data/chunk_index"] = ["../../elsewhere"] * len(columns["data/chunk_index"])

    change_table(root / "meta/episodes/chunk-000/file-000.parquet", change)
    with pytest.raises(DataError, match="data/chunk_index"):
        open_dataset("x/y", root=root)


@pytest.mark.parametrize(
    "name", ["meta/info.json", "data/chunk-000/file-000.parquet", "data/chunk-000", "videos"]
)
def test_a_link_that_leads_out_of_the_dataset(tmp_path, name):
    root = make(tmp_path / "data")
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="leads to"):
        open_dataset("x/y", root=root)


def test_links_that_stay_inside_are_followed(tmp_path):
    """A dataset reached through a link, one with a link inside, and a snapshot of the Hub's
    cache.
    """
    root = make(tmp_path / "data")
    (tmp_path / "linked").symlink_to(root)
    open_dataset("x/y", root=tmp_path / "linked")
    (root / "data").rename(root / "tables")
    (root / "data").symlink_to("tables")
    open_dataset("x/y", root=root)
    snapshot = make(tmp_path / "cache" / "datasets--x--y" / "snapshots" / "abc")
    blobs = tmp_path / "cache" / "datasets--x--y" / "blobs"
    blobs.mkdir()
    for number, path in enumerate(p for p in sorted(snapshot.rglob("*")) if p.is_file()):
        path.rename(blobs / str(number))
        path.symlink_to(os.path.relpath(blobs / str(number), path.parent))
    open_dataset("x/y", root=snapshot)


def test_a_playlist_that_calls_itself_a_video(tmp_path):
    """FFmpeg would open the files that it lists."""
    root = make(tmp_path / "data")
    video = next(root.glob("videos/**/*.mp4"))
    other = shutil.copy(video, video.with_name("other.mp4"))
    change_info(
        root, video_path="videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mkv"
    )
    for path in root.glob("videos/**/file-*.mp4"):
        path.with_suffix(".mkv").write_text(f"ffconcat version 1.0\nfile {Path(other).name}\n")
    with pytest.raises(DataError, match="cannot be read"):
        Reader(open_dataset("x/y", root=root), {})


def eps() -> bytes:
    """A picture that Pillow gives to Ghostscript."""
    head = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 {WIDTH} {HEIGHT}\n%%EndComments\n"
    return (head + "showpage\n%%EOF\n").encode()


def huge() -> bytes:
    """A small PNG of many pixels."""
    data = io.BytesIO()
    Image.new("1", (4000, 4000)).save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("cell", [eps(), b"no picture"], ids=["eps", "text"])
def test_a_picture_of_a_kind_that_runs_programs(tmp_path, monkeypatch, marker, cell):
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    root = make(tmp_path / "data", camera="image")
    for path in root.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        column = pa.array(
            [{"bytes": cell, "path": "x"}] * len(table), table.schema.field(CAMERA).type
        )
        pq.write_table(table.set_column(table.schema.get_field_index(CAMERA), CAMERA, column), path)
    with (
        Reader(open_dataset("x/y", root=root), {}) as reader,
        pytest.raises(DataError, match="cannot be decoded"),
    ):
        reader.read(np.array([0]))


def test_a_picture_larger_than_it_may_be_is_not_decoded(tmp_path):
    root = make(tmp_path / "data", camera="image", lengths=(2,))
    path = next(root.glob("data/**/*.parquet"))
    table = pq.read_table(path)
    column = pa.array([{"bytes": huge(), "path": "x"}] * 2, table.schema.field(CAMERA).type)
    pq.write_table(table.set_column(table.schema.get_field_index(CAMERA), CAMERA, column), path)
    with (
        Reader(open_dataset("x/y", root=root), {}) as reader,
        pytest.raises(DataError, match="4000, 4000"),
    ):
        reader.read(np.array([0]))


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "..", "sub/../../x"])
def test_a_state_file_that_leads_out_of_the_checkpoint(tmp_path, name):
    folder = tmp_path / "pretrained_model"
    folder.mkdir()
    step = {"registry_name": "normalizer_processor", "config": {}, "state_file": name}
    (folder / "policy_preprocessor.json").write_text(
        json.dumps({"name": "policy_preprocessor", "steps": [step]})
    )
    with pytest.raises(CheckpointError):
        load_pipeline(folder, "policy_preprocessor")


def test_a_step_of_a_class_that_is_named_by_the_checkpoint(tmp_path, marker):
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    (tmp_path / "policy_preprocessor.json").write_text(
        json.dumps({"steps": [{"class": "evil.Step", "config": {}}]})
    )
    with pytest.raises(CheckpointError, match="unknown processing step"):
        load_pipeline(tmp_path, "policy_preprocessor")
    (tmp_path / "config.json").write_text(json.dumps({"type": "../evil"}))
    with pytest.raises(ConfigError, match="no such policy"):
        read_policy_config(tmp_path, [])


def test_a_module_beside_the_data_is_not_imported(tmp_path, marker):
    (tmp_path / "numpy.py").write_text(f"open({str(marker)!r}, 'w')")
    done = subprocess.run(
        [sys.executable, *WORKER],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "usage" in done.stderr


SECRETS = {
    "HF_TOKEN": "hf_" + "Q7" * 17,
    "WANDB_API_KEY": "0123456789abcdef" * 2,
    "ENDPOINT": "hunter2hunter2",
}


def test_no_credential_is_written_anywhere(vector_dataset, tmp_path, monkeypatch, capfd):
    """A whole run whose upload fails at an address with a password, and tokens in the
    environment.
    """
    evil = "<script>alert(1)</script>"
    address = f"http://me:{SECRETS['ENDPOINT']}@127.0.0.1:9"
    for name, value in {**SECRETS, "HF_ENDPOINT": address}.items():
        if name != "ENDPOINT":
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.chdir(tmp_path)
    args = [
        f"--dataset.root={vector_dataset}",
        f"--dataset.repo_id={evil}",
        *TINY_ACT,
        "--steps=1",
        "--output_dir=run",
    ]
    args += ["--policy.push_to_hub=true", "--policy.repo_id=me/policy", f"--job_name={evil}"]
    assert main(["train", *args]) == 0
    said = capfd.readouterr()
    assert "not uploaded to me/policy" in said.out
    written = {str(p): p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    written |= {"stdout": said.out.encode(), "stderr": said.err.encode()}
    assert len(written) > 10
    for where, text in written.items():
        for name, secret in SECRETS.items():
            assert secret.encode() not in text, f"{name} in {where}"
    assert b"<script" not in written[str(tmp_path / "run" / "report.html")]


@pytest.mark.parametrize(
    "option",
    [
        "--dataset.root=https://me:hunter2hunter2@store.example/data",
        '--env.kwargs={"token": "hf_' + "Q7" * 17 + '"}',
        "--job_name=0123456789abcdef0123456789abcdef",
    ],
)
def test_a_credential_among_the_options_is_refused(monkeypatch, capsys, tmp_path, option):
    monkeypatch.setenv("WANDB_API_KEY", SECRETS["WANDB_API_KEY"])
    assert main(["train", "--policy.type=act", option]) == 2
    said = capsys.readouterr().err
    assert "password or token" in said
    assert not any(secret in said for secret in SECRETS.values())
    name, _, value = option.removeprefix("--").partition("=")
    (tmp_path / "config.yaml").write_text(f"policy.type: act\n{name}: '{value}'\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_config(tmp_path / "config.yaml")


def test_what_is_no_credential_stays(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "a")
    for text in (
        "https://example.org/a:b@c",
        "s3://bucket/a",
        "hf_transfer",
        "user@host:path",
        "a",
    ):
        assert redacted(text) == text
