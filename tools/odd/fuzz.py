"""Draws odd command lines and flips bytes of small datasets, and counts how kata answers.

    python tools/odd/fuzz.py [--seed=0] [--lines=200] [--flips=500] [--result=FILE.json]

A command line is a verb that works, with one to three odd options: misspelled names, values of
another type, values at and beyond a bound, files of another kind. It must run, or be refused with
one message that has a rule and a remedy. A flip damages one file of a small dataset. `kata data
info`, `kata data check --decode` and a reader then look at it. What the reader returns is compared
with the sound dataset. A traceback is a fault of kata, and makes the exit status 1.

Each case is a process of its own, forked from one that has imported torch, with a limit of time.
`--quick` takes this process instead, and draws only verbs without torch: options of a training run
are then checked, and nothing is trained.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import random
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.conftest import TINY_ACT  # noqa: E402 - found through the line above
from tests.data.dataset_maker import make  # noqa: E402

from kata.cli import KATA, main  # noqa: E402
from kata.config.schema import EVERYTHING, Entry  # noqa: E402
from kata.data import Reader, open_dataset  # noqa: E402
from kata.errors import KataError  # noqa: E402
from kata.run import resolve_run  # noqa: E402

LIMIT_S = 60.0
VALUES = (
    *("", " ", "0", "-1", "1", "2", "7", "0.5", "-0.0", "1e-3", "nan", "inf", "-inf", "1e400"),
    *("18446744073709551616", "-9223372036854775809", "1000", "0x10", "007", "1_000", "1,5", "½"),
    *("true", "False", "null", "none", "~", "yes", "all", "auto", "[]", "{}", "[0]", "[0,0]"),
    *("[1,", '{"a"', '{"a": 1}', "[null]", "[[1],[2]]", "1:3", "2:1", "0:0", "[a,b]", "a b", "--"),
    *("x" * 300, "é🤖", "\\", "'", '"', "%s", "$HOME", "../..", "/", ".", "/dev/null", "/proc/x/y"),
    *("{data}", "{data}/meta/info.json", "{video}", "{table}", "{text}", "{absent}", "1h", "4GB"),
    *("hf://a/b", "s3://b/c", "a/b/c", "2026-11-22", "act", "cuda:99", "cpu", "bf16"),
)
FORMS = ("{name}", "--{name}", "--{name}=", "--={name}", "-{name}=1", "{name}=1", "--no-{name}")


@dataclass(frozen=True)
class Answer:
    """How kata took a case: ran, refused, unclear (refused without rule or remedy), traceback,
    slow (beyond the limit of time) or died (of a signal); and its last words.
    """

    kind: str
    said: str = ""


def answer(work: Callable[[], int]) -> Answer:
    """Run a case in this process."""
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            status = work()
    except KataError as error:
        complete = bool(error.what and error.rule and error.remedy)
        return Answer("refused" if complete else "unclear", str(error))
    except (Exception, SystemExit):  # noqa: BLE001 - what escapes is what is looked for
        return Answer("traceback", traceback.format_exc()[-1500:])
    said = out.getvalue()
    if status != 2:
        return Answer("ran", said[-300:])
    message = said[said.rfind("kata: ") :]
    whole = message.count("  rule: ") == 1 and message.count("  remedy: ") == 1
    return Answer("refused" if whole else "unclear", message[-600:])


def apart(work: Callable[[], int], limit_s: float = LIMIT_S) -> Answer:
    """Run a case in a process of its own."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # libraries in C write there
            os.dup2(null, number)
        with os.fdopen(writes, "w", encoding="utf-8") as pipe:
            json.dump(asdict(answer(work)), pipe)
        os._exit(0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], limit_s)
    if not ready:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reads, encoding="utf-8") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if not ready:
        return Answer("slow")
    return Answer(**json.loads(told)) if told else Answer("died", f"status {status}")


@dataclass(frozen=True)
class Places:
    """Folders of a session: sound datasets, a trained run, and room for results."""

    folder: Path

    def dataset(self, name: str) -> Path:
        return self.folder / name

    @property
    def out(self) -> Path:
        return self.folder / "out" / "result"

    def begin(self) -> None:
        """Clear what the last case has written."""
        shutil.rmtree(self.out.parent, ignore_errors=True)
        self.out.parent.mkdir()

    def filled(self, value: str) -> str:
        """Put the names of files where a drawn value has a name for them."""
        root = self.dataset("v3")
        names = {
            "{data}": root,
            "{video}": next(root.glob("videos/**/*.mp4")),
            "{table}": next(root.glob("data/**/*.parquet")),
            "{text}": self.dataset("v2") / "meta/tasks.jsonl",
            "{absent}": self.folder / "absent",
        }
        for name, path in names.items():
            value = value.replace(name, str(path))
        return value


KINDS = {"v3": ("v3.0", "video"), "v2": ("v2.1", "video"), "png": ("v2.1", "image")}
"""Datasets by name: format, and the dtype of their camera."""


def make_datasets(places: Places) -> int:
    """Write the sound datasets, and what a reader returns of them."""
    for name, (version, camera) in KINDS.items():
        root = make(places.dataset(name), version=version, camera=camera)
        places.dataset(f"{name}.truth").write_bytes(pickle.dumps(content(root)))
    return 0


def content(root: Path) -> dict[str, np.ndarray]:
    """Return all that a reader returns of a dataset."""
    data = open_dataset("made/odd", root=root)
    with Reader(data, {}) as reader:
        return {key: np.asarray(v) for key, v in reader.read(np.arange(data.num_frames)).items()}


def train_words(places: Places) -> list[str]:
    """Return a training run that takes milliseconds."""
    where = [f"--dataset.root={places.dataset('v3')}", "--dataset.repo_id=made/odd"]
    return ["train", *where, *TINY_ACT, "--steps=2", f"--output_dir={places.out}"]


def sound_lines(places: Places) -> list[tuple[str, int, list[str]]]:
    """Return the path of a verb, how often it is drawn, and a line of it that works."""
    v3, v2, out = (str(path) for path in (places.dataset("v3"), places.dataset("v2"), places.out))
    run = str(places.folder / "run")
    made = f"--out={out}"
    return [
        ("train", 14, train_words(places)),
        ("data info", 2, ["data", "info", v3]),
        ("data stats", 2, ["data", "stats", v3]),
        ("data check", 2, ["data", "check", v2]),
        ("data repair", 2, ["data", "repair", v2, made]),
        ("data view", 2, ["data", "view", v3, "--episode=0", f"{made}.png"]),
        ("data convert", 2, ["data", "convert", v2, made]),
        ("data split", 2, ["data", "split", v3, "--episodes=[0]", made]),
        ("data merge", 1, ["data", "merge", v3, v2, made]),
        ("data transcode", 2, ["data", "transcode", v3, made, "--codec=h264"]),
        ("data demo", 1, ["data", "demo", out, "--episodes=1"]),
        ("checkpoint list", 1, ["checkpoint", "list", run]),
        ("checkpoint verify", 1, ["checkpoint", "verify", run]),
        ("checkpoint prune", 1, ["checkpoint", "prune", run, "--keep_last=1"]),
        ("checkpoint export", 1, ["checkpoint", "export", run, made]),
        ("eval", 2, ["eval", f"--policy.path={run}", "--env.type=kata", "--eval.n_episodes=1"]),
        ("launch", 1, ["launch", "--target=slurm", "--", *train_words(places)]),
    ]


WITH_TORCH = ("eval", "launch", "checkpoint export", "data demo")


def options_of(verb: str, draw: random.Random) -> list[Entry]:
    """Return the options of a verb: mostly those of ACT, now and then those of every policy."""
    found = KATA
    for word in verb.split():
        found = found.verbs[word]
    chosen = EVERYTHING if draw.random() < 0.2 else {"policy": "act"}
    return [entry for entry in found.entries(chosen) if "[]" not in entry.name]


def usual_value(draw: random.Random, entry: Entry) -> str:
    """Return a value that the option may take by its type."""
    if isinstance(entry.default, bool):
        return draw.choice(["true", "false"])
    if entry.declared.choices:
        return str(draw.choice(entry.declared.choices))
    if isinstance(entry.default, int):
        return draw.choice(["1", "2", "3", "5"])
    if isinstance(entry.default, float):
        return draw.choice(["0.1", "0.5", "1", "2"])
    return str(entry.default)


def odd_option(draw: random.Random, entry: Entry, places: Places) -> str:
    """Return a word of a command line that names this option, or nearly."""
    name, way = entry.name, draw.random()
    if way < 0.08:
        return draw.choice(FORMS).format(name=name)
    if way < 0.2:
        at = draw.randrange(len(name))
        name = draw.choice([name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper()])
    if way < 0.55 and isinstance(entry.default, str | int | float):
        return f"--{name}={usual_value(draw, entry)}"
    bounds = [number for _, _, number in entry.declared.bounds()]
    if way > 0.7 and bounds:
        return f"--{name}={draw.choice(bounds) + draw.choice([-1, 0, 1]):g}"
    if way > 0.6 and entry.declared.choices:
        return f"--{name}={draw.choice(entry.declared.choices)}"
    return f"--{name}={places.filled(draw.choice(VALUES))}"


def drawn_lines(seed: int, count: int, places: Places, *, quick: bool) -> Iterator[list[str]]:
    """Yield command lines."""
    draw = random.Random(seed)
    verbs = [each for each in sound_lines(places) if not (quick and each[0] in WITH_TORCH)]
    weights = [weight for _, weight, _ in verbs]
    for _ in range(count):
        verb, _, words = draw.choices(verbs, weights)[0]
        known = options_of(verb, draw)
        entries = draw.choices(known, k=draw.choice([1, 1, 2, 3]))
        more = [odd_option(draw, entry, places) for entry in entries]
        at = words.index("--") if "--" in words else len(words)
        yield [*words[:at], *more, *words[at:]]


def started(words: list[str], *, quick: bool) -> int:
    """Run a line; a quick one checks the options of a training run."""
    if quick and words[0] == "train":
        resolve_run(words[1:], 1, {})
        return 0
    return main(words)


@dataclass(frozen=True)
class Damage:
    """One damaged file: its number among the flips, the dataset, the file, what was done."""

    number: int
    dataset: str
    file: Path
    content: bytes

    @property
    def kind(self) -> str:
        """The ending, or png for a table with images."""
        return "png" if self.dataset == "png" and self.file.suffix == ".parquet" else self.suffix

    @property
    def suffix(self) -> str:
        return self.file.suffix.removeprefix(".")


def drawn_damage(seed: int, count: int, places: Places) -> Iterator[Damage]:
    """Yield damaged files, each kind of file as often."""
    draw = random.Random(seed + 1)
    kinds: dict[str, list[tuple[str, Path]]] = {}
    for name in KINDS:
        for path in sorted(p for p in places.dataset(name).rglob("*") if p.is_file()):
            found = Damage(0, name, path, b"")
            kinds.setdefault(found.kind, []).append((name, path))
    for number in range(count):
        name, path = draw.choice(kinds[sorted(kinds)[number % len(kinds)]])
        raw = bytearray(path.read_bytes())
        if draw.random() < 0.15:
            del raw[draw.randrange(len(raw)) :]
        else:
            pictures = raw.find(b"\x89PNG") if name == "png" and path.suffix == ".parquet" else 0
            for _ in range(draw.choice([1, 1, 3, 20])):
                raw[draw.randrange(max(pictures, 0), len(raw))] ^= 1 << draw.randrange(8)
        yield Damage(number, name, path.relative_to(places.dataset(name)), bytes(raw))


def looked_at(damage: Damage, places: Places, ask: Callable[..., Answer]) -> dict[str, str]:
    """Return how info, check and a reader take a damaged dataset."""
    root = places.folder / "damaged" / f"{damage.number}"
    shutil.copytree(places.dataset(damage.dataset), root)
    (root / damage.file).write_bytes(damage.content)
    truth = pickle.loads(places.dataset(f"{damage.dataset}.truth").read_bytes())  # noqa: S301
    found: list[str] = []

    def read() -> int:
        got = content(root)
        same = got.keys() == truth.keys()
        same = same and all(np.array_equal(got[key], truth[key]) for key in truth)
        print("equal" if same else "another")
        return 0

    def check() -> int:
        status = main(["data", "check", str(root), "--decode"])
        print(f"status {status}")
        return status

    asked = {"info": lambda: main(["data", "info", str(root)]), "check": check, "read": read}
    answers = {name: ask(work) for name, work in asked.items()}
    shutil.rmtree(root)
    for name, each in answers.items():
        if each.kind in ("traceback", "died", "unclear", "slow"):
            found.append(f"{name}: {each.kind}: {each.said}")
    outcome = answers["read"].kind
    if outcome == "ran":
        outcome = answers["read"].said.split()[-1]
    is_found = answers["check"].kind == "refused" or "status 1" in answers["check"].said
    return {
        "outcome": "traceback" if found else outcome,
        "check": "found" if is_found else "nothing",
        "fault": "\n".join(found),
    }


def fuzz(
    seed: int, num_lines: int, num_flips: int, folder: Path, *, quick: bool = False
) -> dict[str, Any]:
    """Draw all cases of a seed, and return what is counted and what went wrong."""
    places, ask = Places(folder), answer if quick else apart
    folder.mkdir(parents=True, exist_ok=True)
    assert ask(lambda: make_datasets(places)).kind == "ran"
    if not quick:
        words = [
            f"--output_dir={folder / 'run'}" if "output_dir" in w else w
            for w in train_words(places)
        ]
        assert ask(lambda: main(words)).kind == "ran"
    sound = digest(places)
    lines: Counter[str] = Counter()
    faults: list[str] = []
    for line in drawn_lines(seed, num_lines, places, quick=quick):
        places.begin()
        with chdir(places.out.parent):
            got = ask(lambda line=line: started(line, quick=quick))
        lines[got.kind] += 1
        if got.kind not in ("ran", "refused"):
            faults.append(f"{got.kind}: kata {' '.join(line)}\n{got.said}")
    assert digest(places) == sound, "a case changed a dataset that it read"
    flips: dict[str, Counter[str]] = {}
    for damage in drawn_damage(seed, num_flips, places):
        seen = looked_at(damage, places, ask)
        by_check = f", check {seen['check']}" if seen["outcome"] == "another" else ""
        flips.setdefault(damage.kind, Counter())[seen["outcome"] + by_check] += 1
        if seen["fault"]:
            faults.append(f"{damage.dataset}/{damage.file}, flip {damage.number}\n{seen['fault']}")
    counts = {kind: dict(sorted(each.items())) for kind, each in sorted(flips.items())}
    return {"seed": seed, "lines": dict(sorted(lines.items())), "flips": counts, "faults": faults}


def digest(places: Places) -> list[bytes]:
    """Return the content of every file of the sound datasets."""
    paths = sorted(p for name in KINDS for p in places.dataset(name).rglob("*") if p.is_file())
    return [path.read_bytes() for path in paths]


def run(argv: Sequence[str] | None = None) -> int:
    """Fuzz with one seed, print the counts and the faults, and keep the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--result", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kata-fuzz-") as name:
        os.environ.update(KATA_CACHE=f"{name}/cache", HF_HUB_OFFLINE="1", HF_HOME=f"{name}/hf")
        if not options.quick:
            import kata.train.command  # noqa: F401 - once, before any fork
        found = fuzz(
            options.seed, options.lines, options.flips, Path(name) / "w", quick=options.quick
        )
    faults = found.pop("faults")
    print(*faults, sep="\n\n")
    print(json.dumps(found, indent=1))
    if options.result:
        options.result.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run())
