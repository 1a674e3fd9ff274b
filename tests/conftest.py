"""A tiny dataset that the tests of training share, and a run on it."""

import ctypes
import importlib
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.run import resolve_run
from kata.spec import Column

SHARED = Path(os.environ.get("KATA_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two workers share two cores; one thread each is faster than two that wait for each other.

    Sub-processes too: their sums must be ordered as ours are where a test compares bits.
    """
    import torch  # here, for the process that hands out the tests reads this file too

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Keep what outlives a run in a folder of this session, for sub-processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def same_scheduling():
    """A test that leaves this worker in a real-time class starves the servers of the others."""
    yield
    if sys.platform == "linux":
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.fixture(autouse=True, scope="session")
def results_stay():
    """A test that measures writes its figures to its own folder, not beside those on record."""
    folder = Path(__file__).parents[1] / "benchmarks/results"
    before = sorted(folder.iterdir())
    yield
    assert sorted(folder.iterdir()) == before


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory) -> Path:
    """Six episodes of 12-17 frames, two tasks, two cameras of unequal size; the action follows
    state and picture.
    """
    root = tmp_path_factory.mktemp("data") / "tiny"
    features = {
        "observation.images.top": Column("video", (48, 64, 3)),
        "observation.images.wrist": Column("video", (32, 32, 3)),
        "observation.state": Column("float32", (3,), ("x", "y", "grip")),
        "action": Column("float32", (2,), ("x", "y")),
        "next.reward": Column("float32", (1,)),
    }
    rng = np.random.default_rng(7)
    with DatasetWriter.create(
        root, fps=10, features=features, video=VideoOptions(codec="h264")
    ) as writer:
        for episode in range(6):
            goal = rng.uniform(-1, 1, 2).astype(np.float32)
            for t in range(12 + episode):
                state = np.array([np.sin(t / 5), np.cos(t / 5), episode % 2], dtype=np.float32)
                top = np.full((48, 64, 3), 40 + 10 * episode, dtype=np.uint8)
                top[t : t + 8, 10:30] = 200
                wrist = np.full((32, 32, 3), int(100 + 50 * goal[0]), dtype=np.uint8)
                frame = {
                    "observation.images.top": top,
                    "observation.images.wrist": wrist,
                    "observation.state": state,
                    "action": state[:2] + 0.1 * goal,
                    "next.reward": np.float32(t % 3),
                }
                writer.add_frame(frame, task=f"reach {episode % 2}")
            writer.save_episode()
    return root


@pytest.fixture(scope="session")
def vector_dataset(tmp_path_factory) -> Path:
    """Four episodes of four frames, no camera: a policy without a backbone takes a step in
    milliseconds.
    """
    root = tmp_path_factory.mktemp("data") / "vectors"
    widths = {"observation.state": 3, "observation.environment_state": 2, "action": 2}
    features = {key: Column("float32", (width,)) for key, width in widths.items()}
    rng = np.random.default_rng(7)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for _ in range(4):
            for _ in range(4):
                frame = {
                    key: rng.normal(size=width).astype(np.float32) for key, width in widths.items()
                }
                writer.add_frame(frame, task="follow")
            writer.save_episode()
    return root


@pytest.fixture(scope="session")
def small_trace():
    """A traced step of a small ACT without cameras, for CUDA."""
    from kata.plan.tracing.trace import trace_step
    from tests.plan.small import small_run

    return trace_step(small_run())


TINY_ACT = (
    "--policy.type=act",
    "--policy.pretrained_backbone_weights=null",
    "--policy.dim_model=16",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=16",
    "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1",
    "--policy.latent_dim=4",
    "--policy.chunk_size=5",
    "--policy.n_action_steps=5",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--batch_size=4",
    "--steps=6",
    "--log_freq=2",
    "--num_workers=1",
    "--optimizer.lr=1e-3",
    "--policy.optimizer_lr_backbone=1e-4",
)


@pytest.fixture
def tiny_args(tiny_dataset, tmp_path) -> list[str]:
    """Arguments of a run that takes a second or two."""
    return [
        f"--dataset.root={tiny_dataset}",
        "--dataset.repo_id=tests/tiny",
        *TINY_ACT,
        f"--output_dir={tmp_path}/run",
    ]


def narrow_backbones(patch: pytest.MonkeyPatch) -> None:
    """Build ResNet-18 narrow in this process. Sub-processes build the one of torchvision."""
    from torchvision import models

    from tests.narrow_resnet import build_narrow

    patch.setattr(models, "get_model", partial(build_narrow, models.get_model))


def undrawn_charts(patch: pytest.MonkeyPatch) -> None:
    """Let reports hold each chart's numbers as text: drawing takes longer than a tiny run.

    `tests/train/report` has the drawn charts.
    """

    def curves(series, *, level=None):
        lines = [f"{one.label} {one.x.tolist()} {one.y.tolist()}" for one in series]
        return f"<svg><!-- {lines} {level} --></svg>"

    def chunk(recorded_t, predicted_t, valid):
        return f"<svg><!-- {recorded_t.tolist()} {predicted_t.tolist()} {valid} --></svg>"

    patch.setattr("kata.train.report.curves.curve_chart", curves)
    patch.setattr("kata.train.report.views.action_chart", chunk)


@pytest.fixture
def narrow_backbone(monkeypatch):
    narrow_backbones(monkeypatch)


@pytest.fixture
def plain_charts(monkeypatch):
    undrawn_charts(monkeypatch)


@pytest.fixture
def mere_user():
    """The rights of a user while the test lasts: root may read and write what is closed to it."""
    if os.geteuid() != 0:
        yield
        return
    capset = ctypes.CDLL(None, use_errno=True).capset
    capget = ctypes.CDLL(None, use_errno=True).capget
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert capget(head, held) == 0
    less = (ctypes.c_uint32 * 6)(*held)
    less[0] = less[3] = 0
    assert capset(head, less) == 0
    yield
    assert capset(head, held) == 0


@pytest.fixture
def tiny_run(tiny_args):
    """That run, with options changed: tiny_run('--steps=3')."""
    return lambda *more: resolve_run([*tiny_args, *more])[0]


@pytest.fixture
def vector_run(vector_dataset, tmp_path):
    """A run without pictures, with options changed: vector_run('--steps=3')."""
    args = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors", *TINY_ACT]
    return lambda *more: resolve_run([*args, f"--output_dir={tmp_path}/run", *more])[0]


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory) -> Path:
    """A folder with the config and tokenizer files of a CLIP model of 32x32 pixels; without
    weights.
    """
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools/peer"))
    try:
        return importlib.import_module("tiny_clip").write(
            tmp_path_factory.mktemp("models") / "clip"
        )
    finally:
        sys.path.pop(0)
