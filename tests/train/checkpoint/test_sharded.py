"""Checkpoints in shards: converted without loss, and refused where a shard is absent or the
table is not one.
"""

import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file

from kata.cli import CHECKPOINT
from kata.config.verb import run_verb
from kata.errors import CheckpointError, PolicyError
from kata.run import resolve_run
from kata.train import train
from kata.train.checkpoint.manifest import MANIFEST
from tests.conftest import TINY_ACT, undrawn_charts

MODEL = "pretrained_model/model.safetensors"


def main(args: list[str]) -> int:
    return run_verb(CHECKPOINT, args, "kata checkpoint")


@pytest.fixture(scope="module")
def trained(light_dataset, tmp_path_factory):
    """A run with its state in shards alone, and the same run without shards."""
    data = [f"--dataset.root={light_dataset}", "--dataset.repo_id=tests/light"]
    args = [*data, *TINY_ACT, "--save_freq=2", "--ema.enable=true"]
    folder = tmp_path_factory.mktemp("trained")
    made = (("shards", "--checkpoint_format=dcp"), ("straight", "--checkpoint_format=safetensors"))
    with pytest.MonkeyPatch.context() as patch:
        undrawn_charts(patch)
        return {
            name: train(resolve_run([*args, option, f"--output_dir={folder}/{name}"])[0])
            for name, option in made
        }


@pytest.fixture
def in_shards(trained, tmp_path):
    """The checkpoints folder of a copy of the run in shards."""
    shutil.copytree(trained["shards"].folder, tmp_path / "run", symlinks=True)
    return tmp_path / "run" / "checkpoints"


def test_there_and_back_nothing_changes(in_shards, trained, tmp_path):
    straight = trained["straight"]
    plain = straight.folder / "checkpoints/last"
    assert main(["convert", str(in_shards / "last"), "--to=both"]) == 0
    assert main(["convert", str(in_shards / "last"), "--to=dcp"]) == 0
    assert not (in_shards / "last" / MODEL).exists()
    assert main(["convert", str(in_shards / "last"), "--to=safetensors"]) == 0
    for path in plain.resolve().rglob("*.safetensors"):
        ours, theirs = (
            load_file(in_shards / "last" / path.relative_to(plain.resolve())),
            load_file(path),
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert main(["convert", str(plain), "--to=dcp", f"--out={tmp_path}/out"]) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["verify", str(in_shards.parent)]) == 0


def test_a_run_goes_on_from_shards_bit_for_bit(in_shards, light_run, trained):
    straight = trained["straight"]
    for path in (in_shards / "000006", in_shards / "last"):
        shutil.rmtree(path) if not path.is_symlink() else path.unlink()
    resumed = train(light_run("--ema.enable=true", "--checkpoint_format=dcp", "--resume=true"))
    for ours, theirs in (
        (resumed.state.policy, straight.state.policy),
        (resumed.state.ema, straight.state.ema),
    ):
        expected = theirs.state_dict()
        assert all(
            torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items()
        )


def test_a_missing_piece_is_named(in_shards, light_run):
    (in_shards / "000006/sharded_state/__0_0.distcp").unlink()
    resumed = train(light_run("--ema.enable=true", "--checkpoint_format=dcp", "--resume=true"))
    assert resumed.state.step == 6, "continued from the one before it"
    assert (in_shards / "000006.damaged").is_dir()
    for folder in (in_shards / "000004", in_shards / "000006"):
        (folder / MANIFEST).unlink()
        shutil.copy(folder / "pretrained_model/config.json", folder / MODEL)
        (folder / "sharded_state/__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"__0_0.distcp: absent"):
        main(["convert", str(in_shards / "000006"), "--to=both"])


class Mark:
    """Would leave a file where it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


def test_a_table_that_is_a_program_is_not_run(in_shards, tmp_path):
    (in_shards / "000006" / MANIFEST).unlink()
    (in_shards / "000006/sharded_state/.metadata").write_bytes(
        pickle.dumps(Mark(tmp_path / "mark"))
    )
    with pytest.raises(CheckpointError, match="no part of a table"):
        main(["convert", str(in_shards / "000006"), "--to=both"])
    assert not (tmp_path / "mark").exists()


def test_weights_in_shards_alone_are_converted_before_they_act_or_are_sent(
    in_shards, light_run, tmp_path
):
    with pytest.raises(CheckpointError) as caught:
        main(["export", str(in_shards / "last"), f"--out={tmp_path}/out"])
    assert "convert" in caught.value.remedy
    with pytest.raises(PolicyError, match="in shards"):
        train(
            light_run(
                f"--policy.pretrained_path={in_shards}/last", f"--output_dir={tmp_path}/tuned"
            )
        )
