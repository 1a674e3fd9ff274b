"""Read a dataset from a store on every rank of several nodes, and log the throughput.

    torchrun --nproc_per_node=8 examples/streaming_multinode.py s3://bucket/folder --dummy
    sbatch examples/streaming_multinode.sbatch s3://bucket/folder --dummy

Rank and number of ranks come from torchrun or srun. --dummy takes each batch and drops it, which
shows what the store and the decoders give; without it a small model is trained on the frames.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from kata.loader import Loader

Consumer = Callable[[dict[str, Any]], None]


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", help="folder, Hub name, or address of a dataset")
    parser.add_argument("--dummy", action="store_true", help="drop each batch")
    parser.add_argument("--batch_size", type=int, default=16, help="samples of a rank's batch")
    parser.add_argument("--num_batches", type=int, default=200)
    parser.add_argument("--num_workers", type=int, default=4, help="decoding threads of a rank")
    parser.add_argument("--log_every", type=int, default=50, help="batches between two lines")
    parser.add_argument("--cache_dir", help="keeps fetched bytes, for all ranks of a node")
    return parser.parse_args()


def small_model(camera: str) -> Consumer:
    """Return a consumer that trains a layer on mean colors; ranks are not synchronized."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train_on(batch: dict[str, Any]) -> None:
        colors = batch[camera].to(torch.float32).mean((-2, -1))
        loss = (model(colors)[:, 0] - batch["frame_index"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train_on


def drop(batch: dict[str, Any]) -> None:
    """Do nothing with a batch."""
    del batch


def main() -> None:
    """Read batches, and print a line of throughput every `log_every` of them."""
    args = parsed()
    began_s = time.perf_counter()
    with Loader(
        args.dataset,
        args.batch_size,
        image_dtype=torch.uint8,
        num_workers=args.num_workers,
        cache_dir=args.cache_dir,
    ) as loader:
        cameras = list(loader.data.cameras)
        consume = drop if args.dummy else small_model(cameras[0])
        name = f"rank {loader.rank} of {loader.world_size}"
        mark_s, marked = began_s, 0
        for count, batch in enumerate(islice(loader, args.num_batches), start=1):
            consume(batch)
            now_s = time.perf_counter()
            if count == 1:
                print(f"{name}: first batch after {now_s - began_s:.2f} s", flush=True)
                mark_s, marked = now_s, count
            elif count % args.log_every == 0 or count == args.num_batches:
                samples_s = (count - marked) * args.batch_size / (now_s - mark_s)
                print(
                    f"{name}: batch {count}, {samples_s:.1f} samples/s, "
                    f"{samples_s * len(cameras):.1f} frames/s",
                    flush=True,
                )
                mark_s, marked = now_s, count


if __name__ == "__main__":
    main()
