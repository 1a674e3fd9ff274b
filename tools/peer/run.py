"""Compares kata with LeRobot 0.6.1 itself.

`python tools/peer/run.py [PART ...]` in kata's environment, or `make peer` for all parts. `--help`
lists them.

One line per check with the largest difference measured; leaves with 1 when one fails, with 2 when
the peer's environment cannot be built.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import setup
import torch
from numbers_of import TOLERANCE, difference, within
from safetensors.torch import load_file

HERE = Path(__file__).parent
SMALL_RUN = (
    "--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false",
    "--policy.pretrained_backbone_weights=null", "--policy.chunk_size=4",
    "--policy.n_action_steps=4", "--policy.dim_model=32", "--policy.n_heads=2",
    "--policy.dim_feedforward=32", "--batch_size=2", "--num_workers=1", "--steps=3",
    "--log_freq=1", "--save_checkpoint=false", "--wandb.enable=false",
)  # fmt: skip
"""Options of LeRobot's training script for a run of seconds."""
RELATIVE = ("pi0/relative", "pi05/relative")
"""Checkpoints with relative actions."""
OWN_RELATIVE = ("act/relative", "diffusion/relative")
"""The same of policies whose configs in LeRobot do not have them, so that only kata writes them."""
POLICIES = sorted(path.stem.removeprefix("policy_") for path in HERE.glob("policy_*.py"))


def report(passed: bool, text: str) -> bool:
    print(f"{'PASS' if passed else 'FAIL'} {text}", flush=True)
    return passed


def execute(
    python: Path | str, *arguments: Path | str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder with kata's source and tests importable; its output is kept
    for a failure.
    """
    path = os.pathsep.join([str(setup.ROOT / "src"), str(setup.ROOT), str(HERE)])
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **variables}
    command = [str(python), *map(str, arguments)]
    return subprocess.run(
        command, env=env, cwd=setup.ROOT, capture_output=True, text=True, check=False
    )


def ran(done: subprocess.CompletedProcess[str], what: str) -> bool:
    """True when a script ended well; otherwise its last words are shown."""
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
        report(False, f"{what}: ended with {done.returncode}")
    return not done.returncode


def tests_passed(done: subprocess.CompletedProcess[str], what: str) -> bool:
    """True when a run of pytest ended well; its closing line is shown."""
    if not ran(done, what):
        return False
    lines = done.stdout.strip().splitlines()
    return report(bool(lines), f"{what}: {lines[-1] if lines else 'no output'}")


def differences(own: Path, peer: Path) -> dict[str, float]:
    """The difference of each tensor of two files, endless for one that only one of them has."""
    ours, theirs = load_file(own), load_file(peer)
    found = dict.fromkeys(ours.keys() ^ theirs.keys(), float("inf"))
    found.update(
        {name: difference(ours[name], theirs[name]) for name in ours.keys() & theirs.keys()}
    )
    return found


def same(own: Path, peer: Path, what: str) -> bool:
    found = differences(own, peer)
    where = max(found, key=lambda name: found[name])
    return report(found[where] <= TOLERANCE, f"{what}: {found[where]:.1e} at most, in {where}")


def golden_files(peer: Path, folder: Path, name: str) -> list[bool]:
    """The committed golden files of a policy are what LeRobot computes today.

    Another processor rounds otherwise. Where LeRobot differs from its own file by more than the
    tolerance, it is asked how much rounding errors of its weights change the same numbers.
    """
    script = HERE / "check_policy.py"
    if not ran(execute(peer, script, name, "--golden", folder), f"golden {name}"):
        return [False]
    kept, moved = setup.ROOT / "tests/golden" / name, folder / "moved"
    names = sorted({file.name for place in (kept, folder) for file in place.glob("*.safetensors")})
    absent = [file for file in names if not (kept / file).exists() or not (folder / file).exists()]
    if absent:
        return [report(False, f"golden {name}: not on both sides: {', '.join(absent)}")]
    results: list[bool] = []
    for file in names:
        what, found = f"golden {name} {Path(file).stem}", differences(kept / file, folder / file)
        where = max(found, key=lambda tensor: found[tensor])
        text = f"{what}: {found[where]:.1e} at most, in {where}"
        passed = found[where] <= TOLERANCE
        if not passed:
            if not moved.exists() and not ran(
                execute(peer, script, name, "--golden", moved, "--moved"), f"{what}, moved"
            ):
                return [False]
            changes = differences(folder / file, moved / file)
            passed = within(found, changes)
            text += f"; LeRobot's own changes by {changes[where]:.1e} with moved weights"
        results.append(report(passed, text))
    return results


def live(peer: Path, script: str, *arguments: str) -> list[bool]:
    """A script that LeRobot's Python runs on both sides at once, and that prints its own lines."""
    done = execute(peer, HERE / script, *arguments)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    print("\n".join(lines), flush=True)
    return [not done.returncode if lines else ran(done, script)]


def adapters(peer: Path, folder: Path) -> list[bool]:
    """Each side loads the other's adapter and predicts what the writer predicts."""
    folder.mkdir()
    script = HERE / "adapter.py"
    for side, python in (("own", sys.executable), ("peer", peer), ("again", sys.executable)):
        done = execute(python, script, side, folder)
        if not ran(done, f"adapter, {side}"):
            return [False]
        for line in done.stdout.splitlines():
            if " of the largest action " in line:
                report(passed=True, text=f"adapter: {line}")
    return [True]


def policy(peer: Path, folder: Path, name: str) -> list[bool]:
    """A policy's golden files, and every gradient element by element."""
    return [*golden_files(peer, folder, name), *live(peer, "check_policy.py", name)]


BOTH_WAYS = (("lerobot", "kata"), ("kata", "lerobot"))


def checkpoints(
    peer: Path, folder: Path, name: str, ways: tuple[tuple[str, str], ...] = BOTH_WAYS
) -> list[bool]:
    """Each side acts from the other's checkpoint of a policy as the writer itself does. Files that
    a checkpoint names lie in `folder`, too.
    """
    folder.mkdir()
    sides = {
        "lerobot": (
            [peer, HERE / "make_checkpoint.py", name],
            [peer, HERE / "check_checkpoint.py"],
        ),
        "kata": (
            [sys.executable, HERE / "kata_checkpoint.py", "make", name],
            [sys.executable, HERE / "kata_checkpoint.py", "act"],
        ),
    }
    results: list[bool] = []
    for writer, reader in ways:
        what, place = f"{name} checkpoint of {writer} driven by {reader}", folder / writer
        given = [
            place / "pretrained_model",
            place / "observations.safetensors",
            place / "read.safetensors",
        ]
        shared = {"KATA_PEER_FILES": str(folder)}
        fine = ran(execute(*sides[writer][0], place, **shared), what)
        fine = fine and ran(execute(*sides[reader][1], *given, **shared), what)
        results.append(
            fine and same(place / "read.safetensors", place / "actions.safetensors", what)
        )
    return results


def dataset_items(peer: Path, folder: Path) -> list[bool]:
    """Dataset items against what LeRobot reads of the same files, written anew."""
    done = execute(peer, HERE / "golden_data.py", folder)
    if not ran(done, "dataset items"):
        return [False]
    test = "tests/data/loader/test_lerobot_items.py"
    done = execute(sys.executable, "-m", "pytest", "-n0", test, KATA_GOLDEN_DATA=str(folder))
    return [tests_passed(done, "dataset items")]


def data_tests(peer: Path) -> list[bool]:
    """kata's own tests of its data engine, with the PyAV, NumPy and Python that LeRobot has."""
    what = "kata's data tests beside LeRobot"
    # The stores of these tests, on loopback, are refused where the Hub's client is offline.
    done = execute(peer, "-m", "pytest", "tests/data", HF_HUB_OFFLINE="0")
    return [tests_passed(done, what)]


def examples(peer: Path, folder: Path) -> list[bool]:
    """The tests of the examples with LeRobot's packages, and a run of LeRobot's training script
    with kata's batches.
    """
    what = "examples beside LeRobot"
    done = execute(peer, "-m", "pytest", "-n0", "tests/examples")
    results = [tests_passed(done, what)]
    what = "LeRobot's training script with kata's batches"
    root = folder / "reach"
    if not ran(execute(sys.executable, HERE / "kata_dataset.py", "make", root, "h264"), what):
        return [*results, False]
    places = ("--dataset.repo_id=local/reach", f"--dataset.root={root}")
    script = setup.ROOT / "examples/lerobot_train.py"
    done = execute(peer, script, *SMALL_RUN, *places, f"--output_dir={folder / 'run'}")
    fine = ran(done, what)
    has_loss = "loss:" in done.stdout + done.stderr
    return [*results, fine and report(has_loss, f"{what}: {'' if has_loss else 'no '}loss logged")]


def written_datasets(peer: Path, folder: Path) -> list[bool]:
    """LeRobot opens what kata's writer makes, and sees the frames and numbers that kata's reader
    sees.
    """
    results: list[bool] = []
    for codec in ("av1", "h264"):
        what, root = f"dataset written by kata ({codec})", folder / codec
        fine = ran(execute(sys.executable, HERE / "kata_dataset.py", "make", root, codec), what)
        results.append(fine and seen_alike(peer, root, what))
    return results


def edited_datasets(peer: Path, folder: Path) -> list[bool]:
    """The same of what kata converts, splits, merges and encodes anew."""
    done = execute(sys.executable, HERE / "kata_dataset.py", "edit", folder)
    if not ran(done, "datasets edited by kata"):
        return [False]
    verbs = ("convert", "split", "merge", "transcode")
    return [seen_alike(peer, folder / verb, f"dataset out of kata data {verb}") for verb in verbs]


def seen_alike(peer: Path, root: Path, what: str) -> bool:
    """LeRobot and kata see the same items in a dataset."""
    seen = root.with_suffix(".npz")
    if not ran(execute(peer, HERE / "check_dataset.py", root, "--out", seen), what):
        return False
    done = execute(sys.executable, HERE / "kata_dataset.py", "compare", root, seen)
    return ran(done, what) and report(True, f"{what}: {done.stdout.strip()}")


def policy_checks(peer: Path, folder: Path, name: str) -> Iterator[bool]:
    """All that is compared of a policy: numbers, and checkpoints both ways."""
    folder.mkdir()
    yield from policy(peer, folder / "golden", name)
    yield from checkpoints(peer, folder / "saved", name)
    relative = f"{name}/relative"
    if relative in RELATIVE:
        yield from checkpoints(peer, folder / "relative", relative)
    if relative in OWN_RELATIVE:
        yield from checkpoints(peer, folder / "relative", relative, BOTH_WAYS[1:])


def parts(peer: Path, folder: Path) -> dict[str, Callable[[], Iterable[bool]]]:
    """What can be compared, by name."""
    found: dict[str, Callable[[], Iterable[bool]]] = {}
    for script in ("augment", "guests", "rl", "wall_x_fast", "precision", "fields"):
        found[script] = partial(live, peer, f"check_{script}.py")
    for name in POLICIES:
        found[name] = partial(policy_checks, peer, folder / name, name)
    found["adapters"] = partial(adapters, peer, folder / "adapters")
    found["items"] = partial(dataset_items, peer, folder / "items")
    found["reading"] = partial(data_tests, peer)
    found["examples"] = partial(examples, peer, folder / "examples")
    found["written"] = partial(written_datasets, peer, folder / "written")
    found["edited"] = partial(edited_datasets, peer, folder / "edited")
    return found


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        compared = parts(setup.PYTHON, Path(name))
        parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
        parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(compared))
        asked = parser.parse_args().parts
        unknown = [part for part in asked if part not in compared]
        if unknown:
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(compared)}")
        setup.set_up()
        results: list[bool] = []
        for part in asked or compared:
            results.extend(compared[part]())
    print(f"{sum(results)} of {len(results)} groups of checks passed")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
