"""The diagnosis names the stage that binds, on figures made for each and on real runs with each
made slow.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.data.video import decoder
from kata.data.video.decoder import Decoder
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.policies.act.model import ACTNetwork
from kata.spec import Column
from kata.train import train
from kata.train.input.feed import Copier
from kata.train.metrics import meter
from kata.train.metrics.bottleneck import Diagnosis, Spent, Stage, diagnose, spent_of
from kata.train.metrics.meter import Meter, read_metrics
from kata.train.summary import run_summary

KEPT_UP = Spent(
    steps=100,
    total_s=10.0,
    wait_s=0.1,
    copy_s=0.4,
    update_s=9.4,
    read_s=0.1,
    decode_s=8.0,
    convert_s=2.0,
    threads=4,
)
"""A run on a CPU whose reader could be four times as fast as the update."""
CUDA = dataclasses.replace(KEPT_UP, beside=True, update_s=3.0, drain_s=6.4, flushes=2)
"""A GPU that is many steps behind when the host stops."""
LAUNCHING = dataclasses.replace(CUDA, update_s=9.3, drain_s=0.02)
WAITING = dataclasses.replace(KEPT_UP, wait_s=6.0, update_s=3.5, decode_s=28.0, convert_s=8.0)
STARVED = dataclasses.replace(
    WAITING,
    decode_s=3.0,
    convert_s=1.0,
    store_wait_s=8.0,
    requests=500,
    request_s=100.0,
    bytes_fetched=50 * 2**20,
)


def test_a_slow_store_is_named_with_its_latency_and_what_would_help() -> None:
    text = verdict(STARVED).text
    for words in ("the store", "500 requests took 200 ms each", "5.0 MiB per second"):
        assert words in text
    assert "--dataset.cache_dir" in text
    assert "--dataset.buffer_gb" in text


def verdict(spent: Spent) -> Diagnosis:
    found = diagnose(spent)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spent", "stage"),
    [
        (KEPT_UP, Stage.COMPUTE),
        (WAITING, Stage.DECODE),
        (dataclasses.replace(WAITING, read_s=30.0), Stage.READ),
        (dataclasses.replace(WAITING, convert_s=30.0), Stage.CONVERT),
        (STARVED, Stage.FETCH),
        # Bytes are waited for now and then, but decoding takes longer.
        (dataclasses.replace(WAITING, store_wait_s=4.0), Stage.DECODE),
        (dataclasses.replace(KEPT_UP, copy_s=6.0, update_s=3.8), Stage.COPY),
        (CUDA, Stage.COMPUTE),
        (LAUNCHING, Stage.LAUNCH),
        (dataclasses.replace(LAUNCHING, copy_s=6.0, update_s=3.7), Stage.COPY),
        # The host waits, but for batches that a device far behind does not need yet.
        (dataclasses.replace(CUDA, wait_s=2.0, update_s=1.0), Stage.COMPUTE),
        # The device's own last step is not behind: it starves like the host.
        (dataclasses.replace(CUDA, wait_s=7.0, update_s=2.0, drain_s=0.1, flushes=2), Stage.DECODE),
        # Logging at every step: the host cannot run ahead, and waits for the device each time.
        (dataclasses.replace(CUDA, update_s=2.5, drain_s=6.9, flushes=100), Stage.COMPUTE),
    ],
)
def test_the_binding_stage_is_named(spent, stage):
    found = verdict(spent)
    assert found.stage is stage
    assert 1.0 <= found.halved <= found.removed


def test_gains_follow_amdahls_law():
    found = verdict(WAITING)
    # Decoding is 28 of the reader's 36.1 thread seconds, and the reader sets the pace; the loop
    # itself works 4 of 10 s.
    assert found.share == pytest.approx(0.6)
    assert found.halved == pytest.approx(1 / (1 - 0.5 * 28 / 36.1))
    assert found.removed == pytest.approx(10 / 4)
    assert "60%" in found.text
    assert "90%" in found.text, "36.1 s of 4 threads in 10 s"
    computing = verdict(KEPT_UP)
    assert computing.halved == pytest.approx(10 / (10 - 4.7))
    assert computing.removed == pytest.approx(10 / (10.1 / 4)), "then the reader sets the pace"


def test_a_stage_that_is_nearly_all_of_the_time_gives_no_factor():
    found = verdict(Spent(steps=100, total_s=10.0, wait_s=0.01, update_s=9.8, read_s=0.01))
    assert found.removed == pytest.approx(50)
    assert "half of it would make the run 1.96 times as fast, and everything" in found.text
    assert "everything else takes less than 10% of the time. What helps" in found.text
    assert "50.00" not in found.text
    assert "none of it 3.96 times at most" in verdict(KEPT_UP).text


def test_nothing_measured_gives_no_verdict():
    assert diagnose(Spent()) is None
    assert diagnose(spent_of([{"kind": "train", "step": 2}])) is None


def test_a_reader_without_cameras_is_named_and_never_divides_by_zero():
    found = verdict(Spent(steps=10, total_s=1.0, wait_s=1.0))
    assert found.stage is Stage.READ
    assert found.removed == pytest.approx(100)


def test_intervals_add_up():
    lines = [
        {"spent": dataclasses.asdict(KEPT_UP)},
        {"other": 1},
        {"spent": dataclasses.asdict(CUDA)},
    ]
    total = spent_of(lines)
    assert total == KEPT_UP + CUDA
    assert (total.steps, total.total_s, total.threads, total.beside) == (200, 20.0, 4, True)


@pytest.fixture
def light(monkeypatch):
    """A policy that hardly computes anything: its frames are read and not looked at."""

    def forward(network, batch, latent):
        del latent
        action = network.action_head(
            network.encoder_robot_state_input_proj(batch["observation.state"])
        )
        return action[:, None].expand(-1, network.config.chunk_size, -1)

    monkeypatch.setattr(ACTNetwork, "forward", forward)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Callable[[int, int], Path]:
    """A dataset of 192x256, two episodes of 48 frames, with a key frame every so many and noise
    of that strength.
    """

    def make(gop: int, strength: int) -> Path:
        root = tmp_path_factory.mktemp("data") / "pictures"
        features = {
            "observation.images.top": Column("video", (192, 256, 3)),
            "observation.state": Column("float32", (3,)),
            "action": Column("float32", (2,)),
        }
        rng = np.random.default_rng(0)
        with DatasetWriter.create(
            root, fps=10, features=features, video=VideoOptions(codec="h264", gop=gop)
        ) as writer:
            for _ in range(2):
                for _ in range(48):
                    frame = {
                        "observation.images.top": rng.integers(
                            0, 1 + strength, (192, 256, 3), np.uint8
                        )
                    }
                    state = rng.normal(size=3).astype(np.float32)
                    writer.add_frame(
                        {**frame, "observation.state": state, "action": state[:2]}, task="look"
                    )
                writer.save_episode()
        return root

    return make


SHORT = (
    "--policy.use_vae=false",
    "--batch_size=2",
    "--steps=16",
    "--log_freq=4",
    "--save_checkpoint=false",
)


def trained(tiny_run, *more: str) -> tuple[Diagnosis, list[str]]:
    """A real run: its verdict, and that of each interval; the verdict stands in its last words
    and in its report.
    """
    run = tiny_run(*SHORT, *more)
    done = train(run)
    lines = [
        line for line in read_metrics(done.folder / "metrics.jsonl") if line["kind"] == "train"
    ]
    assert done.diagnosis is not None
    assert done.diagnosis.text in run_summary(run, done)
    assert done.diagnosis.text[:40] in done.report.read_text()
    return done.diagnosis, [line["bound_by"] for line in lines]


def seconds_per_step(folder: Path) -> float:
    """Of all steps but those of the first interval."""
    return (
        spent_of(
            [x for x in read_metrics(folder / "metrics.jsonl") if x["kind"] == "train"][1:]
        ).total_s
        / 12
    )


def slowed(monkeypatch, owner: type, name: str, sleep_s: float) -> None:
    """That method sleeps first, with nothing locked."""
    whole = getattr(owner, name)

    def slow(*args, **options):
        time.sleep(sleep_s)
        return whole(*args, **options)

    monkeypatch.setattr(owner, name, slow)


def test_slow_reading_is_named(tiny_run, light, monkeypatch):
    slowed(monkeypatch, decoder, "read_packets", 0.03)
    found, lines = trained(
        tiny_run, "--dataset.frame_memory=50KB"
    )  # two batches: nothing is held for later ones
    assert found.stage is Stage.READ
    assert found.share > 0.5
    assert lines.count("read") >= 3


def test_slow_decoding_is_named(tiny_run, light, pictures):
    # One key frame per episode: 24 frames are decoded for one, on average.
    found, lines = trained(
        tiny_run, f"--dataset.root={pictures(48, 254)}", "--dataset.frame_memory=600KB"
    )
    assert found.stage is Stage.DECODE
    assert found.removed > 1.5
    assert lines.count("decode") >= 3


def test_a_slow_model_is_named(tiny_run, light, monkeypatch):
    whole, matrix = ACTNetwork.forward, torch.ones(400, 400)

    def slow(network, batch, latent):
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.06:
            matrix @ matrix  # not in Python: readers go on meanwhile
        return whole(network, batch, latent)

    monkeypatch.setattr(ACTNetwork, "forward", slow)
    found, lines = trained(tiny_run)
    assert found.stage is Stage.COMPUTE
    assert found.share > 0.5
    assert lines.count("compute") >= 3


def test_slow_conversion_is_named(tiny_run, light, monkeypatch):
    slowed(monkeypatch, Decoder, "to_rgb", 0.03)
    found, lines = trained(
        tiny_run
    )  # all frames are held as they were decoded, and converted for each batch
    assert found.stage is Stage.CONVERT
    assert "--dataset.cache=frames" in found.text
    assert lines.count("convert") >= 3


def test_heavy_augmentation_is_named(tiny_run, light, pictures):
    # Pictures of one colour are decoded in no time: no neighbour on the machine makes the loop wait
    # for them.
    kinds = [
        '"SharpnessJitter", "kwargs": {"sharpness": [0.5, 1.5]}',
        '"RandomAffine", "kwargs": {"degrees": [-5, 5]}',
    ]
    transforms = ", ".join(
        f'"{number}": {{"type": {kind}}}'
        for number, kind in enumerate(3 * [*kinds, '"MotionBlur"'])
    )
    found, lines = trained(
        tiny_run, f"--dataset.root={pictures(1, 0)}", "--dataset.image_transforms.enable=true",
        "--dataset.image_transforms.max_num_transforms=9", f"--dataset.image_transforms.tfs={{{transforms}}}",  # noqa: E501
    )  # fmt: skip
    assert found.stage is Stage.COPY
    assert "image_transforms" in found.text
    assert lines.count("copy") >= 3


class ThreadDevice:
    """A device beside the host: what is launched on it is done in order by a thread, and the host
    waits where it logs.

    kernel_s: of each of the 20 kernels of a step. launch_s: of the host, for each.
    """

    def __init__(self, kernel_s: float, launch_s: float) -> None:
        self._stream = ThreadPoolExecutor(1)
        self._last: Future[None] = Future()
        self._kernel_s, self._launch_s = kernel_s, launch_s

    def step(self) -> None:
        for _ in range(20):
            time.sleep(self._launch_s)
            self._last = self._stream.submit(time.sleep, self._kernel_s)

    def wait(self) -> None:
        self._last.result()


@pytest.fixture
def beside(light, monkeypatch) -> Iterator[Callable[[float, float], None]]:
    """Training on a device made of a thread, with kernels and launches of these seconds."""
    devices: list[ThreadDevice] = []

    def use(kernel_s: float, launch_s: float) -> None:
        devices.append(device := ThreadDevice(kernel_s, launch_s))
        forward, figures = ACTNetwork.forward, Meter._read_figures

        def launched(*args):
            device.step()
            return forward(*args)

        def waited(one):
            device.wait()
            return figures(one)

        monkeypatch.setattr(ACTNetwork, "forward", launched)
        monkeypatch.setattr(Meter, "_read_figures", waited)
        monkeypatch.setattr(meter, "computes_beside", lambda device: True)

    yield use
    for device in devices:
        device._stream.shutdown()


def test_launching_many_small_kernels_is_named(tiny_run, beside):
    beside(
        0.0, 0.01
    )  # a busy machine wakes the device's thread late, by a few milliseconds of a step's 200
    found, lines = trained(tiny_run)
    assert found.stage is Stage.LAUNCH
    assert "--batch_size" in found.text
    assert lines.count("launch") >= 3


def test_a_device_that_falls_behind_is_named(tiny_run, beside):
    beside(0.005, 0.0002)
    found, lines = trained(tiny_run)
    assert found.stage is Stage.COMPUTE
    assert lines.count("compute") >= 3


@pytest.mark.long  # compares wall-clock times of two runs: other work on the machine spoils it
@pytest.mark.parametrize(
    ("stage", "owner", "name", "sleep_s"),
    [(Stage.CONVERT, Decoder, "to_rgb", 0.02), (Stage.COPY, Copier, "__call__", 0.012)],
)
def test_a_run_gains_what_was_said(
    tiny_run, light, monkeypatch, tmp_path, stage, owner, name, sleep_s
):
    """The stage is made slow, and then half as slow."""
    with monkeypatch.context() as patch:
        slowed(patch, owner, name, sleep_s)
        before = train(tiny_run(*SHORT, f"--output_dir={tmp_path}/before"))
    slowed(monkeypatch, owner, name, sleep_s / 2)
    after = train(tiny_run(*SHORT, f"--output_dir={tmp_path}/after"))
    assert before.diagnosis is not None
    assert before.diagnosis.stage is stage
    gained = seconds_per_step(before.folder) / seconds_per_step(after.folder)
    assert before.diagnosis.halved == pytest.approx(gained, rel=0.3)
    assert gained > 1.3
