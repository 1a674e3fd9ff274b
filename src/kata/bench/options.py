"""The options of `kata bench data`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kata.bench.cases import PATTERNS, WAYS, Case
from kata.config import BYTES, REQUIRED, Form, Options, option
from kata.errors import ConfigError, DataError, did_you_mean
from kata.run.dataset import PIXELS
from kata.units import num_bytes


@dataclass(frozen=True, kw_only=True)
class BenchRun(Options):
    """The cases of a measurement and its repetitions."""

    root: str = option(
        REQUIRED,
        "A dataset, or a folder that holds datasets; it also stands first, without a name.",
        aliases=("dataset.root",),
    )
    cases: list[str] = option(
        list,
        "Cases as ['<folder below root>:<pattern>'], '.:act' for root itself; empty takes the "
        "pattern act on root, or on each dataset in it.",
    )
    ways: list[str] = option(lambda: list(WAYS), "Ways in which kata reads.", choices=WAYS)
    rounds: int = option(5, "Measurements of each figure; the median counts.", least=1)
    seconds: float = option(
        3.0, "Duration of one measurement; clip order takes whole epochs.", unit="s", least=0.01
    )
    epoch_seconds: float = option(
        10.0,
        "Duration after which whole epochs of clip order end; one that takes three times as long "
        "is cut.",
        unit="s",
        least=0.01,
    )
    floor_seconds: float = option(
        1.0, "Least duration of the decode floor, per core and camera.", unit="s", least=0.01
    )
    batch_size: int = option(8, "Samples of a batch.", least=1)
    num_workers: int = option(0, "Decoding threads; 0 takes one per core.", least=0)
    seed: int = option(0, "Seed of the order.", least=0, most=2**64 - 1)
    frame_memory: str = option(
        "0",
        "Host memory for decoded frames; 0 takes a tenth of all frames, for sarm a third.",
        form=Form(BYTES.rule, "2GB", lambda text: num_bytes(text) >= 0),
    )
    pixels: str = option(
        "rgb",
        "Frames in a batch: rgb, or yuv, whose floor is decoding alone.",
        choices=PIXELS,
    )
    cache_episodes: int = option(
        2, "First episodes, which the frame cache keeps and which are read with it.", least=1
    )
    soak: int = option(
        0,
        "Instead of all that, read this many batches of the first case and say how memory grew; 0 "
        "does not.",
        least=0,
    )
    out: str | None = option("benchmarks/results", "Folder of the result; null writes none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in self.cases:
            pattern = word.rpartition(":")[2]
            if pattern not in PATTERNS or ":" not in word:
                raise ConfigError(
                    f"cases: {word}",
                    rule="'<dataset folder>:<pattern>'",
                    remedy=did_you_mean(pattern, PATTERNS),
                )


def chosen_cases(run: BenchRun, usual: Sequence[Case] = ()) -> list[Case]:
    """Return the cases asked for, or else the pattern act on root, or on each dataset in it.

    Args:
        run: The options.
        usual: The cases to take in place of each dataset in root, where root has their folders.

    Raises:
        DataError: There is no such dataset.
    """
    root = Path(run.root).expanduser()
    cases: list[Case] = []
    for word in run.cases:
        folder, _, pattern = word.rpartition(":")
        cases.append(Case(folder, pattern))
    if not cases and _is_dataset(root):
        cases = [Case(".", "act")]
    if not cases and root.is_dir():
        folders = sorted(path.name for path in root.iterdir() if _is_dataset(path))
        everyone = usual or [Case(folder, "act") for folder in folders]
        cases = [case for case in everyone if case.folder in folders]
    absent = [case.folder for case in cases if not _is_dataset(root / case.folder)]
    if absent or not cases:
        raise DataError(
            f"{root}: holds no dataset{f' {absent[0]}' if absent else ''}",
            rule="a LeRobot dataset has meta/info.json; root is one, or holds some",
            remedy="name the folder of a dataset, or `kata data demo <folder>` records one",
        )
    return cases


def _is_dataset(folder: Path) -> bool:
    return (folder / "meta" / "info.json").is_file()
