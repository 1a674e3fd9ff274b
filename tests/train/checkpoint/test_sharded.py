"""Checkpoints in pieces: converted without loss, and refused where a piece is absent or the
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
from kata.train import train
from kata.train.checkpoint.manifest import MANIFEST

MODEL = "pretrained_model/model.safetensors"


def main(args: list[str]) -> int:
    return run_verb(CHECKPOINT, args, "kata checkpoint")


@pytest.fixture
def in_pieces(light_run):
    """The checkpoints folder of a run with its state in pieces alone."""
    return train(light_run("--checkpoint_format=dcp", "--ema.enable=true")).folder / "checkpoints"


def test_there_and_back_nothing_changes(in_pieces, light_run, tmp_path):
    straight = train(light_run("--ema.enable=true", f"--output_dir={tmp_path}/straight"))
    plain = straight.folder / "checkpoints/last"
    assert main(["convert", str(in_pieces / "last"), "--to=both"]) == 0
    assert main(["convert", str(in_pieces / "last"), "--to=dcp"]) == 0
    assert not (in_pieces / "last" / MODEL).exists()
    assert main(["convert", str(in_pieces / "last"), "--to=safetensors"]) == 0
    for path in plain.resolve().rglob("*.safetensors"):
        ours, theirs = (
            load_file(in_pieces / "last" / path.relative_to(plain.resolve())),
            load_file(path),
        )
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert main(["convert", str(plain), "--to=dcp", f"--out={tmp_path}/out"]) == 0
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["verify", str(in_pieces.parent)]) == 0


def test_a_run_goes_on_from_pieces_bit_for_bit(in_pieces, light_run, tmp_path):
    straight = train(light_run("--ema.enable=true", f"--output_dir={tmp_path}/straight"))
    for path in (in_pieces / "000006", in_pieces / "last"):
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


def test_a_missing_piece_is_named(in_pieces, light_run):
    (in_pieces / "000006/sharded_state/__0_0.distcp").unlink()
    resumed = train(light_run("--ema.enable=true", "--checkpoint_format=dcp", "--resume=true"))
    assert resumed.state.step == 6, "continued from the one before it"
    assert (in_pieces / "000006.damaged").is_dir()
    for folder in (in_pieces / "000004", in_pieces / "000006"):
        (folder / MANIFEST).unlink()
        shutil.copy(folder / "pretrained_model/config.json", folder / MODEL)
        (folder / "sharded_state/__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"__0_0.distcp: absent"):
        main(["convert", str(in_pieces / "000006"), "--to=both"])


class Mark:
    """Would leave a file where it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (str(self.file), "w"))


def test_a_table_that_is_a_program_is_not_run(in_pieces, tmp_path):
    (in_pieces / "000006" / MANIFEST).unlink()
    (in_pieces / "000006/sharded_state/.metadata").write_bytes(
        pickle.dumps(Mark(tmp_path / "mark"))
    )
    with pytest.raises(CheckpointError, match="no part of a table"):
        main(["convert", str(in_pieces / "000006"), "--to=both"])
    assert not (tmp_path / "mark").exists()


def test_weights_in_pieces_alone_are_converted_before_they_act_or_are_sent(
    in_pieces, light_run, tmp_path
):
    with pytest.raises(CheckpointError) as caught:
        main(["export", str(in_pieces / "last"), f"--out={tmp_path}/out"])
    assert "convert" in caught.value.remedy
    with pytest.raises(PolicyError, match="in pieces"):
        train(
            light_run(
                f"--policy.pretrained_path={in_pieces}/last", f"--output_dir={tmp_path}/tuned"
            )
        )
