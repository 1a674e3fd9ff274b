"""The options of `kata rl classify`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kata.config import REQUIRED, Options, option
from kata.config.dataset import DatasetChoice
from kata.errors import ConfigError
from kata.rl.classifier.config import ClassifierConfig


@dataclass(frozen=True, kw_only=True)
class ClassifyRun(Options):
    """Options of `kata rl classify`."""

    output_dir: str = option(REQUIRED, "Folder of the classifier, new.", is_common=True)
    dataset: DatasetChoice = option(DatasetChoice, "", section="recordings")
    reward_model: ClassifierConfig = option(ClassifierConfig, "", section="classifier")
    steps: int = option(1000, "Updates.", least=1, is_common=True)
    batch_size: int = option(
        32, "Frames of an update, half of them successes.", least=2, is_common=True
    )
    held_out: float = option(
        0.2,
        "Share of the episodes that are kept apart for the accuracy.",
        above=0,
        below=1,
        is_common=True,
    )
    threshold: float = option(
        0.5, "Probability above which a frame shows success.", above=0, below=1, is_common=True
    )
    random_shift: int = option(4, "Pixels by which frames are moved in training.", least=0)
    seed: int = option(1000, "Seed of everything that is drawn.", least=0, most=2**31)
    log_freq: int = option(100, "Updates between lines of the log.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset.root is None and self.dataset.repo_id is None:
            raise ConfigError(
                "dataset.root: not given",
                rule="a classifier is trained on recordings, which dataset.root or repo_id names",
                remedy="--dataset.root=<folder of a LeRobot dataset with next.reward>",
            )
