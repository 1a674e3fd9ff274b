"""A plain PyTorch loop on a LeRobot dataset, which it continues exactly after an interruption.

python examples/plain_pytorch_loop.py <folder, Hub name or s3://…>
"""

import sys
from itertools import islice
from pathlib import Path

import torch

from kata.loader import Loader

saved = Path("plain_pytorch_loop.pt")

with Loader(sys.argv[1], batch_size=8, seed=0) as loader:
    columns = loader.data.columns
    model = torch.nn.Linear(columns["observation.state"].shape[0], columns["action"].shape[0])
    optimizer = torch.optim.AdamW(model.parameters())
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    for batch in islice(loader, 20):
        loss = (model(batch["observation.state"]) - batch["action"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, saved)
    print(f"loss {loss.item():.4f} at sample {loader.position}")
