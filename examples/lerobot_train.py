"""LeRobot 0.6.1's own training script, with its batches from kata's Loader.

    python examples/lerobot_train.py --policy.type=act --dataset.repo_id=… (all of lerobot-train)

LeRobot's order of samples changes, once: from here on kata's is kept, also when a run is resumed.
"""

from accelerate.data_loader import BatchSamplerShard
from lerobot.scripts import lerobot_train
from torch import uint8

from kata.data import open_dataset
from kata.loader import Loader


def kata_batches(prepared):
    """Return kata's batches in the place of those of LeRobot's DataLoader."""
    data, batches = prepared.dataset, prepared.batch_sampler
    if isinstance(batches, BatchSamplerShard):
        batches = batches.batch_sampler
    sampler = batches.sampler
    loader = Loader(
        open_dataset(data.repo_id, root=data.root, episodes=data.episodes),
        batch_size=batches.batch_size,
        delta_timestamps=data.delta_timestamps,
        seed=sampler.seed,
        drop_n_last_frames=(data.num_frames - len(sampler)) // data.num_episodes,
        image_dtype=uint8,  # LeRobot's loop makes floats of it
    )
    start = sampler.state_dict()
    loader.load_state_dict({"position": start["epoch"] * len(sampler) + start["start_index"]})
    return iter(loader)


lerobot_train.cycle = kata_batches

if __name__ == "__main__":
    lerobot_train.main()
