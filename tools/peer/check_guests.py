"""Guests beside kata's own policies and LeRobot's training script: run by LeRobot's Python, kata
importable. `check_guests.py [name ...]` runs some of the checks.

One line per check. Runs are forked from this process, which has imported LeRobot once.
"""

# pyright: reportMissingImports=false, reportPrivateUsage=false
# LeRobot is in the environment that runs this alone; its own pieces and kata's are put together.

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from guest_files import tiny_internvl, toy_package
from safetensors.torch import load_file

from kata.cli import main as kata
from kata.config import decode
from kata.data.sampling.philox import draw
from kata.eval import load_for_acting
from kata.eval.record.demonstrations import record
from kata.policies.config import PolicyConfig
from kata.policies.guest.model import Policy as GuestPolicy
from kata.update.step import _key_dropout

LIMIT = 1e-6
STEPS = 5
QUIET = ("--policy.device=cpu", "--policy.push_to_hub=false", "--log_freq=1", "--batch_size=4")
ACT = (
    "--policy.pretrained_backbone_weights=null", "--policy.chunk_size=4",
    "--policy.n_action_steps=2", "--policy.dim_model=32", "--policy.n_heads=2",
    "--policy.dim_feedforward=32", "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4", "--policy.dropout=0",
)  # fmt: skip
DIFFUSION = (
    "--policy.pretrained_backbone_weights=null", "--policy.horizon=8",
    "--policy.n_action_steps=4", "--policy.down_dims=[16,32]", "--policy.n_groups=4",
    "--policy.diffusion_step_embed_dim=16", "--policy.num_inference_steps=2",
    "--policy.spatial_softmax_num_keypoints=4", "--policy.crop_ratio=1.0",
    "--policy.scheduler_warmup_steps=2",
)  # fmt: skip
EVO1 = (
    "--policy.image_resolution=[28,28]", "--policy.vlm_num_layers=2", "--policy.vlm_dtype=float32",
    "--policy.use_amp=false", "--policy.use_flash_attn=false", "--policy.embed_dim=16",
    "--policy.hidden_dim=16", "--policy.state_hidden_dim=16", "--policy.num_heads=2",
    "--policy.num_layers=1", "--policy.chunk_size=4", "--policy.n_action_steps=2",
    "--policy.max_state_dim=6", "--policy.max_action_dim=5", "--policy.max_views=2",
    "--policy.dropout=0.1", "--policy.num_inference_timesteps=2", "--policy.max_text_length=64",
    "--policy.training_stage=stage2",
)  # fmt: skip


def report(passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'} {text}", flush=True)
    return passed


def _child(work: Callable[[], Any], log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            status = work()
        except BaseException:  # noqa: BLE001 - it ends the process, with what is printed
            traceback.print_exc()
            status = 70
    os._exit(status or 0)


class Team:
    """Forked processes of one piece of work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self._context = multiprocessing.get_context("fork")

    def start(self, work: Callable[[], Any], **environment: str) -> tuple[Any, Path]:
        self.count += 1
        log = self.folder / f"log-{self.count}.txt"
        process = self._context.Process(target=_child, args=(work, log, environment))
        process.start()
        return process, log

    def run(self, work: Callable[[], Any], expect: int = 0, **environment: str) -> str:
        """Return what the work prints; raise SystemExit at another status."""
        process, log = self.start(work, **environment)
        process.join()
        if process.exitcode != expect:
            raise SystemExit(f"ended with {process.exitcode}:\n{log.read_text()[-3000:]}")
        return log.read_text()

    def train(self, out: Path, *flags: str, **environment: str) -> str:
        return self.run(lambda: kata(["train", *flags, f"--output_dir={out}"]), 0, **environment)


class Check:
    """A folder with a dataset, and what trains on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.team = Team(folder)
        self.root = folder / "reach"
        record(self.root, num_episodes=4, codec="h264", workers=1)
        self.data = ("--dataset.repo_id=local/reach", f"--dataset.root={self.root}")
        self.common = (*QUIET, *self.data)

    def losses(self, out: Path) -> list[float]:
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "train"]

    def compare(self, one: list[float], other: list[float], what: str) -> bool:
        if len(one) != STEPS or len(other) != STEPS:
            return report(False, f"{what}: {len(one)} and {len(other)} of {STEPS} losses")
        worst = max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(one, other, strict=True))
        passed = worst <= LIMIT
        if not passed:
            print(f"one: {one}, other: {other}")
        return report(passed, f"{what}: losses of {STEPS} steps differ by {worst:.1e}")


def with_native_draws(native: PolicyConfig, seed: int) -> Callable[..., Any]:
    """Return the guest's forward pass with the random numbers that kata's own policy is given."""
    plain = GuestPolicy.forward

    def forward(self: GuestPolicy, batch: dict[str, Any], **draws: Any) -> Any:
        positions = batch["position"].numpy()
        drawn: dict[str, torch.Tensor] = {}
        for name, spec in native.draws().items():
            drawn[name] = torch.from_numpy(draw(seed, positions, f"train/{name}", spec))

        def integers(low: int, high: int, size: Any, **options: Any) -> torch.Tensor:
            return (drawn["time"][:, 0] * high).long()

        def normal(*shape: Any, **options: Any) -> torch.Tensor:
            return drawn["noise"]

        with (
            mock.patch.object(torch, "randn", normal),
            mock.patch.object(torch, "randn_like", normal),
            mock.patch.object(torch, "randint", integers),
        ):
            return plain(self, batch, **draws)

    return forward


def guest_run(check: Check, name: str, base: Path, flags: tuple[str, ...], out: Path) -> None:
    """Train a guest from kata's own weights."""
    check.team.train(
        out, f"--policy.type=lerobot.{name}", f"--policy.pretrained_path={base}", *flags,
        *check.common, f"--steps={STEPS}", "--save_checkpoint=false",
    )  # fmt: skip


def lerobot_run(check: Check, base: Path, out: Path) -> list[float]:
    """Losses of LeRobot's training script, with kata's batches and the seeds of kata's steps."""
    kept = out.with_suffix(".json")

    def work() -> int:
        from lerobot.scripts import lerobot_train as script

        from examples import lerobot_train as example

        found: list[float] = []
        plain = script.update_policy

        def update_policy(*args: Any, **options: Any) -> Any:
            _key_dropout(1000, len(found), 0)
            tracker, figures = plain(*args, **options)
            found.append(tracker.loss.val)
            return tracker, figures

        script.update_policy = update_policy
        sys.argv = [
            "lerobot-train", f"--policy.path={base}", "--policy.device=cpu",
            "--policy.push_to_hub=false", "--batch_size=4", "--num_workers=0", "--log_freq=1",
            f"--steps={STEPS}", "--save_checkpoint=false", "--wandb.enable=false", "--seed=1000",
            *check.data, f"--output_dir={out}",
        ]  # fmt: skip
        assert example.lerobot_train is script
        script.main()
        kept.write_text(json.dumps(found))
        return 0

    check.team.run(work)
    return json.loads(kept.read_text())


def beside(check: Check, name: str, flags: tuple[str, ...]) -> list[bool]:
    """A guest against kata's own policy and against LeRobot's script, from the same weights."""
    folder = check.folder / name
    own = (f"--policy.type={name}", *flags, *check.common, "--seed=1000")
    check.team.train(folder / "first", *own, "--steps=1", "--save_freq=1")
    base = folder / "first/checkpoints/last/pretrained_model"
    native = folder / "native"
    check.team.train(
        native, f"--policy.path={base}", *check.common, f"--steps={STEPS}",
        "--save_checkpoint=false", "--seed=1000",
    )  # fmt: skip
    raw = json.loads((base / "config.json").read_text())
    config = decode(PolicyConfig, raw)
    seeded = (*flags, "--seed=1000")
    if "drop_n_last_frames" in raw:  # LeRobot has 7 for any horizon, kata computes it
        seeded = (*seeded, f"--policy.drop_n_last_frames={raw['drop_n_last_frames']}")
    guest_run(check, name, base, seeded, folder / "guest")
    with mock.patch.object(GuestPolicy, "forward", with_native_draws(config, 1000)):
        guest_run(check, name, base, seeded, folder / "guest_native_draws")
    theirs = lerobot_run(check, base, folder / "lerobot")
    return [
        check.compare(
            check.losses(native),
            check.losses(folder / "guest_native_draws"),
            f"guest {name} against kata's own",
        ),
        check.compare(
            theirs, check.losses(folder / "guest"), f"guest {name} against lerobot-train"
        ),
    ]


def killed(check: Check, out: Path, flags: tuple[str, ...]) -> None:
    """Train, and be killed after step 5, when the checkpoint of step 4 is there."""
    plain = GuestPolicy.after_step

    def after_step(self: GuestPolicy, step: int, bad: torch.Tensor) -> Any:
        if step == 5:
            until = time.monotonic() + 60
            while not (out / "checkpoints/000004").exists() and time.monotonic() < until:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, step, bad)

    with mock.patch.object(GuestPolicy, "after_step", after_step):
        check.team.run(
            lambda: kata(["train", *flags, f"--output_dir={out}"]), expect=-signal.SIGKILL
        )


def same_files(one: Path, other: Path) -> list[str]:
    """The names of the files that differ in two checkpoints, but for the run's own folder."""
    names = {str(p.relative_to(place)) for place in (one, other) for p in place.rglob("*.*")}
    return sorted(
        name
        for name in names
        if not name.endswith(("train_config.json", "manifest.json"))
        and (one / name).read_bytes() != (other / name).read_bytes()
    )


def resumed(check: Check, name: str, flags: tuple[str, ...]) -> list[bool]:
    """A guest trains, is killed and goes on to the same bytes; LeRobot loads and acts with it."""
    folder = check.folder / name
    flags = (
        f"--policy.type=lerobot.{name}", *flags, *check.common, "--steps=6", "--save_freq=2",
        "--dataset.eval_split=0.25", "--ema.enable=true",
    )  # fmt: skip
    printed = check.team.train(folder / "straight", *flags)
    killed(check, folder / "killed", flags)
    check.team.train(folder / "killed", *flags, "--resume=true")
    ends = [folder / run / "checkpoints/000006" for run in ("straight", "killed")]
    different = same_files(*ends)
    validated = "validation at step 6" in printed and "the report shows no samples" not in printed
    return [
        report(not different, f"guest {name}, killed and resumed: {different or 'byte for byte'}"),
        report(validated, f"guest {name}: validated, and samples in the report"),
        acts_in_lerobot(check, name, ends[0] / "pretrained_model"),
        two_ranks(check, name, flags),
    ]


def acts_in_lerobot(check: Check, name: str, saved: Path) -> bool:
    """LeRobot loads a guest's checkpoint and acts as kata does with it."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies import get_policy_class, make_pre_post_processors
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    config = PreTrainedConfig.from_pretrained(saved)
    with contextlib.redirect_stdout(io.StringIO()):
        policy = get_policy_class(config.type).from_pretrained(saved, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=str(saved))
    ready = load_for_acting(str(saved), device="cpu")
    stream = np.random.RandomState(0)
    state = ready.policy.init_state(2)
    worst = 0.0
    for step in range(5):
        seen: dict[str, np.ndarray] = {}
        for key, feature in ready.config.input_features.items():
            shape = feature.shape
            frames = stream.randint(0, 256, (2, *shape[1:], shape[0])).astype(np.uint8)
            numbers = stream.rand(2, *shape).astype(np.float32)
            seen[key] = frames if key in ready.config.cameras else numbers
        torch.manual_seed(step)
        mine, state = ready.act(seen, "reach the target", state)
        batch: dict[str, Any] = {"task": ["reach the target"] * 2}
        for key, value in seen.items():
            tensor = torch.from_numpy(value)
            is_frame = key in ready.config.cameras
            batch[key] = tensor.permute(0, 3, 1, 2).float() / 255 if is_frame else tensor
        torch.manual_seed(step)
        theirs = after(policy.select_action(before(batch)))
        worst = max(worst, float((theirs - torch.from_numpy(mine)).abs().max()))
    return report(worst <= LIMIT, f"guest {name}: LeRobot acts from its checkpoint, {worst:.1e}")


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def two_ranks(check: Check, name: str, flags: tuple[str, ...]) -> bool:
    """Two ranks train what one rank with two accumulated micro-batches trains."""
    folder, what = check.folder / name, f"guest {name}: two ranks against one"
    steps = ("--steps=3", "--save_freq=3", "--ema.enable=false")
    flags = tuple(flag for flag in flags if not flag.startswith(("--steps", "--save", "--ema")))
    check.team.train(folder / "one", *flags, *steps, "--accelerator.gradient_accumulation.steps=2")
    port, started = free_port(), []
    for rank in range(2):
        started.append(
            check.team.start(
                lambda: kata(["train", *flags, *steps, f"--output_dir={folder / 'two'}"]),
                RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            )
        )  # fmt: skip
    for process, log in started:
        process.join(300)
        if process.exitcode != 0:
            print(log.read_text()[-2000:])
            return report(False, f"{what}: a rank ended with {process.exitcode}")
    place = "checkpoints/last/pretrained_model/model.safetensors"
    one, two = (load_file(folder / run / place) for run in ("one", "two"))
    worst = max(float((one[key].float() - two[key].float()).abs().max()) for key in one)
    return report(worst <= LIMIT, f"{what} of two micro-batches: weights differ by {worst:.1e}")


def evaluated(check: Check) -> list[bool]:
    """`kata eval` plays episodes with the checkpoint of a guest."""
    saved = check.folder / "act/guest_saved"
    check.team.train(
        saved, "--policy.type=lerobot.act", *ACT, *check.common, "--steps=1", "--save_freq=1"
    )
    out = check.folder / "evaluated"
    check.team.run(
        lambda: kata(
            ["eval", f"--policy.path={saved}", "--policy.device=cpu", "--env.type=kata",
             "--eval.n_episodes=2", "--eval.batch_size=2", f"--output_dir={out}"]
        )
    )  # fmt: skip
    found = [path.name for path in out.rglob("*.json")]
    told = check.team.run(
        lambda: kata(["plan", "--gpu=rtx4090", "--policy.type=lerobot.act", *ACT, *check.common]),
        expect=2,
    )
    mistyped = check.team.run(
        lambda: kata(["train", "--policy.type=lerobot.actt", *check.common]), expect=2
    )
    return [
        report(bool(found), "kata eval with a guest's checkpoint: 2 episodes"),
        report("cannot trace a policy of LeRobot" in told, "kata plan says that it cannot"),
        report("lerobot.act?" in mistyped, "a mistyped guest: the nearest name"),
    ]


def checks(check: Check) -> Iterator[tuple[str, Callable[[], list[bool]]]]:
    yield "act", lambda: beside(check, "act", ACT)
    yield "diffusion", lambda: beside(check, "diffusion", DIFFUSION)
    yield "toy", lambda: resumed(check, "toy", ())
    model = check.folder / "internvl"

    def evo1() -> list[bool]:
        if not model.exists():
            tiny_internvl(model)
        return resumed(check, "evo1", (*EVO1, f"--policy.vlm_model_name={model}"))

    yield "evo1", evo1
    yield "verbs", lambda: evaluated(check)


def main() -> int:
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    results: list[bool] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy_package(folder / "site")
        sys.path.insert(0, str(folder / "site"))
        import lerobot.policies.factory
        import lerobot.scripts.lerobot_train  # noqa: F401 - before the first fork

        check = Check(folder)
        for title, work in checks(check):
            if wanted and title not in wanted:
                continue
            try:
                results += work()
            except BaseException:  # noqa: BLE001 - the other checks go on
                traceback.print_exc()
                results.append(report(False, f"guest {title}: a run failed"))
        shutil.rmtree(check.root, ignore_errors=True)
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
