"""An adapter on a base in shards: what two ranks save is what one rank saves."""

import pytest
import torch
from safetensors.torch import load_file

from kata.run import resolve_run
from kata.train import train
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes
from tests.finetune.conftest import NOT_OF_A_BASE, write_base
from tests.plan.small import VECTORS, small_run


@pytest.mark.long
def test_an_adapter_in_two_shards_is_that_of_one_rank(vector_dataset, tmp_path):
    write_base(tmp_path / "base", small_run(VECTORS).policy)
    plain = [each for each in TINY_ACT if not each.startswith(NOT_OF_A_BASE)]

    def args(name, size, *options):
        return [
            f"--policy.path={tmp_path}/base", *plain, f"--dataset.root={vector_dataset}",
            "--dataset.repo_id=tests/vectors", f"--output_dir={tmp_path}/{name}", "--peft.r=2",
            "--optimizer.type=sgd", "--optimizer.lr=0.01", "--optimizer.momentum=0.9",
            "--ema.enable=true", "--steps=4", "--save_freq=2", "--batch_size=2",
            f"--accelerator.gradient_accumulation.steps={2 // size}", *options,
        ]  # fmt: skip

    group = ranks.start(
        2,
        scenes.train_runs,
        args("shards", 2, "--parallelism.dp_shard=-1"),
        args("native", 2, "--parallelism.dp_shard=-1", "--engine=native"),
        folder=tmp_path / "out",
    )
    assert group.ended(600) == [0, 0], group.said(0) + group.said(1)
    assert "1 copy in 2 shards each" in group.said(0)
    train(resolve_run(args("whole", 1))[0])
    for part in ("pretrained_model", "pretrained_model_ema"):
        files = {
            name: load_file(
                tmp_path / name / "checkpoints/last" / part / "adapter_model.safetensors"
            )
            for name in ("whole", "shards", "native")
        }
        wanted = files.pop("whole")
        assert any(tensor.any() for name, tensor in wanted.items() if "lora_B" in name)
        for name, found in files.items():
            assert found.keys() == wanted.keys()
            for key, tensor in found.items():
                torch.testing.assert_close(
                    tensor, wanted[key], rtol=0, atol=1e-6, msg=f"{name} {key}"
                )
