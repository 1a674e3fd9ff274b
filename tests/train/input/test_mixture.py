"""Training on several datasets: a mixture of one is that dataset, and each dataset keeps what is
its own.
"""

import dataclasses
import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.cli import main
from kata.data import Batches, Order
from kata.data.loader.reader import Reader
from kata.data.loader.shuffle import Shuffle, ShuffleChoice
from kata.data.sampling.mixture_order import MixtureOrder
from kata.data.writing.dataset_writer import DatasetWriter
from kata.errors import KataError
from kata.policies import build_policy, config_class
from kata.policies.base import Loss, Term
from kata.processors import Pipeline, load_pipeline
from kata.processors.pipeline import POSTPROCESSOR, PREPROCESSOR
from kata.run import resolve_run
from kata.spec import ENV_STATE, STATE, Column, Feature, FeatureType
from kata.train import train
from kata.train.input.feed import Feed
from kata.train.input.mixture_checks import check_together
from kata.train.input.prepare import prepare
from kata.update.step import loss_by_dataset
from kata.update.step_batch import Share
from tests.conftest import TINY_ACT
from tests.data.small_maker import CAMERA, small
from tests.train.test_train import close, equal, numbers, weights


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Datasets of one robot (one, two), of a larger one (large), at another rate (fast), with
    cameras (seen, wide).
    """
    home = tmp_path_factory.mktemp("mix")
    made = {
        "one": {}, "two": {"seed": 1, "lengths": (7, 8, 9)}, "large": {"seed": 2, "state": 5, "action": 4},  # noqa: E501
        "fast": {"fps": 20}, "seen": {"camera": (CAMERA, 32)}, "wide": {"camera": (CAMERA, 64)},
        "named": {"names": ("x", "y")}, "turned": {"names": ("y", "x")},
    }  # fmt: skip
    return {name: small(home / name, **options) for name, options in made.items()}


@pytest.fixture
def entries(roots):
    """Entries of dataset.mix as a flag: entries('one', two={'weight': 2})."""

    def flag(*plain, **more):
        listed = {**{name: {} for name in plain}, **more}
        return "--dataset.mix=" + json.dumps(
            [
                {"repo_id": f"tests/{n}", "root": str(roots[n.partition("-")[0]]), **o}
                for n, o in listed.items()
            ]
        )

    return flag


@pytest.fixture
def run(tmp_path):
    def resolved(*args, out="run"):
        return resolve_run([*TINY_ACT, f"--output_dir={tmp_path}/{out}", *args])[0]

    return resolved


def weighted(one, two):
    return {"one": {"weight": one}, "two": {"weight": two}}


def test_a_mixture_of_one_is_that_dataset_bit_for_bit(run, entries, roots):
    options = ("--steps=5", "--dataset.eval_split=0.3")
    alone = train(run("--dataset.repo_id=tests/one", f"--dataset.root={roots['one']}", *options))
    for number, stats in enumerate(("joint", "each")):
        mixed = train(
            run(entries("one"), f"--dataset.mix_stats={stats}", *options, out=f"mix{number}")
        )
        assert equal(weights(alone), weights(mixed))
        assert numbers(mixed) == numbers(alone), "no figure by dataset, and none differs"
        assert said(mixed) == said(alone)
    record = json.loads((alone.folder / "train_config.json").read_text())["dataset"]
    assert record["mix"] is None
    assert record["mix_clips"] is None
    assert not (alone.folder / "checkpoints/last/pretrained_model/processors").exists()


def said(trained):
    """What a run printed before its first step, except for its folder."""
    lines = (trained.folder / "log.txt").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("step "))
    return [line for line in lines[:first] if not line.startswith("run folder")]


def test_a_camera_under_another_name_is_the_same_camera(run, tmp_path):
    root = small(tmp_path / "front", camera=("observation.images.front", 32))
    map_ = {"observation.images.front": CAMERA}
    options = (f"--dataset.root={root}", f"--rename_map={json.dumps(map_)}")
    alone = train(run("--dataset.repo_id=t/front", *options, "--steps=1"))
    entry = json.dumps([{"repo_id": "t/front", "root": str(root), "rename_map": map_}])
    mixed = train(run(f"--dataset.mix={entry}", "--steps=1", out="mixed"))
    assert equal(weights(alone), weights(mixed))
    saved = [
        t.folder / "checkpoints/last/pretrained_model/policy_preprocessor.json"
        for t in (alone, mixed)
    ]
    assert saved[0].read_text() == saved[1].read_text(), (
        "a checkpoint acts with the names of the recording"
    )


def test_a_divided_dataset_has_the_statistics_of_the_whole(run, roots):
    whole = prepare(run("--dataset.repo_id=tests/one", f"--dataset.root={roots['one']}"))
    parts = [{"repo_id": "t/one", "root": str(roots["one"]), "name": f"p{i}", "episodes": [2 * i, 2 * i + 1]}  # noqa: E501
             for i in range(2)]  # fmt: skip
    divided = prepare(run(f"--dataset.mix={json.dumps(parts)}"))
    for key in ("action", "observation.state"):
        for name, value in whole.normalization.stats[key].items():
            np.testing.assert_array_equal(divided.normalization.stats[key][name], value)


def test_resumed_equals_straight(run, entries):
    options = [
        entries(**weighted(3, 1)),
        "--dataset.mix_stats=each",
        "--dataset.eval_split=0.3",
        "--save_freq=3",
    ]
    straight = train(run(*options))
    train(run(*options, "--steps=3", out="part"))
    resumed = train(run(*options, "--resume=true", out="part"))
    assert equal(weights(straight), weights(resumed))
    assert numbers(straight) == numbers(resumed)
    assert straight.last["samples_by_dataset"] == {"one": 18, "two": 6}


def test_the_split_into_micro_batches_does_not_change_the_update(run, entries):
    plain = (entries("one", "large"), "--dataset.mix_pad_vectors=true", "--policy.dropout=0",
             "--optimizer.type=sgd", "--optimizer.lr=0.01")  # fmt: skip
    whole = train(run(*plain))
    split = train(
        run(*plain, "--batch_size=1", "--accelerator.gradient_accumulation.steps=4", out="split")
    )
    close(weights(whole), weights(split), atol=1e-6)
    assert whole.last["loss_by_dataset"] == pytest.approx(split.last["loss_by_dataset"], abs=1e-4)


def test_validation_tells_the_datasets_apart(run, entries):
    found = [x for x in numbers(train(run(entries("one", "two"), "--dataset.eval_split=0.3")))
             if x["kind"] == "validation"][-1]  # fmt: skip
    assert set(found["action_error_by_dataset"]) == set(found["loss_by_dataset"]) == {"one", "two"}
    error = found["action_error_by_dataset"]
    assert min(error.values()) < found["action_error"] < max(error.values())
    # In evaluation ACT's loss is the action error over the chunk.
    assert found["loss_by_dataset"] == pytest.approx(error, rel=1e-5)


def test_the_report_and_the_checkpoint_name_the_datasets(run, entries):
    trained = train(
        run(entries("one", "two"), "--dataset.mix_stats=each", "--dataset.mix_primary=two")
    )
    page = trained.report.read_text()
    assert "Training loss by dataset" in page
    assert "one + two" in page
    folder = trained.folder / "checkpoints/last/pretrained_model"
    own = {name: prepare(run(entries(name))).normalization.stats for name in ("one", "two")}
    for name, place in (
        ("one", folder / "processors/one"),
        ("two", folder / "processors/two"),
        ("two", folder),
    ):
        for pipeline, index in ((PREPROCESSOR, 3), (POSTPROCESSOR, 0)):
            step = load_pipeline(place, pipeline).steps[index]
            np.testing.assert_array_equal(
                step.stats["action"]["mean"], own[name]["action"]["mean"].astype(np.float32)
            )


def test_padded_dimensions_are_neither_trained_on_nor_counted(run, entries):
    config = prepare(run(entries("one", "large"), "--dataset.mix_pad_vectors=true")).run.policy
    assert config.output_features["action"] == Feature(FeatureType.ACTION, (4,))
    pads = {
        "action_is_pad": np.zeros((3, 5), dtype=bool),
        "action_dim_is_pad": np.zeros((3, 4), dtype=bool),
    }
    pads["action_is_pad"][0, 3:] = pads["action_dim_is_pad"][0, 2:] = True
    assert config.loss_weights(3, pads)["l1_loss"] == 3 * 2 + 2 * 5 * 4
    policy = build_policy(config).eval()
    batch = {"action": torch.zeros(3, 5, 4), "observation.state": torch.zeros(3, 5),
             "observation.environment_state": torch.randn(3, 4)}  # fmt: skip
    batch |= {key: torch.from_numpy(pad) for key, pad in pads.items()}
    loss = policy(batch)
    error = policy.predict_chunk(batch).abs()
    expected = error[0, :3, :2].sum() + error[1:].sum()
    assert loss.terms["l1_loss"].total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.detail["l1_loss"].sum().item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_datasets_loss_is_that_of_its_samples_alone():
    detail = {"a": torch.tensor([1.0, 2.0, 4.0]), "b": torch.tensor([3.0, 5.0, 7.0])}
    loss = Loss({name: Term(d.sum(), 1 + (name == "b")) for name, d in detail.items()}, detail)
    micro = {"dataset_index": torch.tensor([2, 0, 2])}
    shares = [Share(0, "x", {"a": 4.0, "b": 1.0}), Share(2, "y", {"a": 10.0, "b": 4.0})]
    found = loss_by_dataset(loss, micro, shares)
    assert {k: v.item() for k, v in found.items()} == {
        "loss_by_dataset/x": 2 / 4 + 2 * 5.0,
        "loss_by_dataset/y": 5 / 10 + 2 * 10 / 4,
    }
    assert (
        loss_by_dataset(loss, micro, [])
        == loss_by_dataset(Loss(loss.terms, {}), micro, shares)
        == {}
    )


def test_the_stream_of_a_run_is_each_datasets_own_order(run, entries):
    prepared = prepare(run(entries(**weighted(3, 1))))
    stream = MixtureOrder.full(
        prepared.data.train.sizes(prepared.data.rows),
        prepared.data.train.shares(prepared.data.rows),
        1000,
    ).at(np.arange(40))
    assert (stream < 38).sum() == 30
    np.testing.assert_array_equal(stream[stream < 38], Order(38, 1000).at(np.arange(30)))


MISFITS = {
    "other rates": (("one", "fast"), (), ("one 10, fast 20", "--dataset.mix_any_fps=true")),
    "other sizes": (
        ("one", "large"),
        (),
        ("action: sizes differ (one 2, large 4)", "--dataset.mix_pad_vectors=true"),
    ),
    "a camera that one lacks": (
        ("seen", "one"),
        (),
        (f"one: no {CAMERA}", "fill: true", "--policy.input_features="),
    ),
    "cameras of two sizes": (
        ("seen", "wide"),
        (),
        ("seen 32x32x3, wide 64x64x3", "bring the recordings to one size"),
    ),
    "exchanged dimensions": (("named", "turned"), (), ("named: x, y; turned: y, x", "reorder")),
    "an unknown primary": (("one", "two"), ("--dataset.mix_primary=tow",), ("did you mean 'two'",)),
    "unknown statistics": (
        ("one", "two"),
        ("--dataset.mix_stats=joined",),
        ("did you mean 'joint'",),
    ),
    "a rename for all": (("one", "two"), ("--rename_map={a: b}",), ("dataset.mix",)),
    "clips of one": (
        ("one", "two"),
        ("--dataset.shuffle=clips", "--dataset.clip_pool=5"),
        ("dataset.mix_clips",),
    ),
    "clips of three": (
        ("one", "two"),
        ("--dataset.mix_clips=[[1,2]]",),
        ("for each of 2 datasets",),
    ),
    "clips of no frames": (
        ("one", "two"),
        ("--dataset.mix_clips=[[5,0,0],[3,2,1]]",),
        ("for each of 2 datasets",),
    ),
    "clips of half a group": (
        ("one", "two"),
        ("--dataset.mix_clips=[[4,3,2],[0,0,0]]",),
        ("a divisor",),
    ),
    "a root for all": (("one", "two"), ("--dataset.root=/x",), ("entries of dataset.mix",)),
    "a dataset beside it": (("one", "two"), ("--dataset.repo_id=a/b",), ("leave out one",)),
}


def refused(capsys, tmp_path, *args):
    status = main(["train", *TINY_ACT, f"--output_dir={tmp_path}/run", *args])
    said = capsys.readouterr().err
    assert status == 2, said
    assert "rule:" in said
    assert "remedy:" in said
    assert not (tmp_path / "run").exists()
    return said


def test_padded_actions_need_a_policy_that_leaves_them_out(run, entries):
    prepared = prepare(run(entries("one", "large"), "--dataset.mix_pad_vectors=true"))
    policy, options = prepared.run.policy, prepared.run.dataset
    assert check_together(prepared.data.train, policy, options) == []
    counting = config_class("diffusion")().with_features(
        policy.input_features, policy.output_features
    )
    with pytest.raises(KataError, match="diffusion cannot leave padded dimensions out of its loss"):
        check_together(prepared.data.train, counting, options)


@pytest.mark.parametrize("name", MISFITS)
def test_datasets_that_do_not_fit_are_refused_before_step_1(capsys, tmp_path, entries, name):
    names, options, expected = MISFITS[name]
    said = refused(capsys, tmp_path, entries(*names), *options)
    assert all(text in said for text in expected), said


def test_all_differences_stand_in_one_table(capsys, tmp_path, entries):
    said = refused(capsys, tmp_path, entries("seen", "large", "fast"))
    for text in (
        "seen     large  fast",
        "10       10     20",
        "sizes differ",
        f"large, fast: no {CAMERA}",
        "a step lasts",
    ):
        assert text in said, said


def test_datasets_without_a_shared_input_are_refused(capsys, tmp_path, entries):
    apart = {
        "observation.state": "observation.mine",
        "observation.environment_state": "observation.world",
    }
    said = refused(capsys, tmp_path, entries("seen", one={"rename_map": apart, "fill": True}))
    assert "no input is in all of the datasets" in said


ENTRIES = {
    "weight 0": ({"weight": 0}, "remove the entry"),
    "a negative weight": ({"weight": -1}, "a positive number"),
    "a weight that is no number": ({"weight": float("nan")}, "dataset.mix[1].weight=.nan"),
    "one weight left out": ({}, "two without a weight"),
    "a share too small": ({"weight": 1e-9}, "larger weight"),
    "a weight in words": ({"weight": "much"}, "dataset.mix[1].weight=much"),
    "an unknown option": ({"weigth": 1}, "did you mean --dataset.mix[].weight"),
    "a name taken already": ({"weight": 1, "name": "one"}, "both called one"),
    "a name with a slash": ({"weight": 1, "name": "../x"}, "names folders"),
    "a doubled episode": ({"weight": 1, "episodes": [1, 1]}, "dataset.mix[1].episodes"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_that_make_no_sense_are_refused(capsys, tmp_path, entries, name):
    options, expected = ENTRIES[name]
    flag = entries(one={"weight": 1}, two=options).replace("NaN", ".nan")
    assert expected in refused(capsys, tmp_path, flag)


def test_black_frames_are_read_where_they_are_asked_for(run, entries):
    prepared = prepare(run(entries("seen", one={"fill": True})))
    assert list(prepared.run.policy.cameras) == [CAMERA]
    assert prepared.data.train.lacking(CAMERA) == ["one"]


def test_memory_and_caches_change_no_weight(run, tmp_path):
    long, short = (
        small(tmp_path / n, seed=i, camera=(CAMERA, 32), lengths=(8 + i, 9))
        for i, n in enumerate("ab")
    )
    mix = [{"repo_id": f"tests/{root.name}", "root": str(root)} for root in (long, short)]
    options = (f"--dataset.mix={json.dumps(mix)}", "--steps=4", "--dataset.eval_split=0.3")
    plain = weights(train(run(*options)))
    for name, more in {"tight": "frame_memory=20KB", "cached": "cache=disk"}.items():
        again = run(
            *options,
            f"--dataset.{more}",
            *(["--dataset.cache_dir=" + str(tmp_path)][: name == "cached"]),
            out=name,
        )
        assert equal(plain, weights(train(again)))
    assert len(list((tmp_path / "frames").glob("*.pixels"))) == 2


def test_clips_that_an_overflow_made_are_derived_again_when_the_run_resumes(run, tmp_path):
    """The room times what a dataset wants is more than 63 bits hold."""
    roots = [
        small(tmp_path / n, seed=i, camera=(CAMERA, 32), lengths=(30 + i, 19))
        for i, n in enumerate("ab")
    ]
    mix = [
        {"repo_id": f"tests/{root.name}", "root": str(root), "weight": weight}
        for root, weight in zip(roots, (50_021, 49_999), strict=True)
    ]
    fresh = run(
        f"--dataset.mix={json.dumps(mix)}",
        "--dataset.shuffle=clips",
        f"--dataset.frame_memory={2**38}",
    )
    prepared = prepare(fresh)
    right = prepared.run.dataset.mix_clips
    choice = ShuffleChoice(
        Shuffle("clips"), 2**38, 4, fresh.prefetch_factor + 1, prepared.reading.frame_format
    )
    where = (
        prepared.data.train,
        prepared.reading.windows,
        prepared.reading.cameras,
        prepared.data.rows,
    )
    overflowed = [
        [each.clip_pool, each.clip_frames, each.clip_gop]
        for each in choice.choose(*where, in_64_bits=True)[0]
    ]
    assert overflowed != right

    def resumed(clips):
        data = dataclasses.replace(prepared.run.dataset, mix_clips=clips)
        return prepare(dataclasses.replace(fresh, dataset=data, resume=True))

    repaired = resumed(overflowed)
    assert repaired.run.dataset.mix_clips == right
    assert "came from an overflow" in "".join(repaired.notes)
    few = [[5, 4, 1], [3, 2, 1]]
    for kept in (right, few):
        again = resumed(kept)
        assert again.run.dataset.mix_clips == kept
        assert "overflow" not in "".join(again.notes)


def moving(root, action_key):
    features = {
        STATE: Column("float32", (2,)),
        ENV_STATE: Column("float32", (2,)),
        action_key: Column("float32", (2,), ("x", "y")),
    }
    rng = np.random.default_rng(3)
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for _ in range(3):
            for _ in range(8):
                frame = {key: rng.normal(size=2).astype(np.float32) for key in features}
                writer.add_frame(frame, task="move")
            writer.save_episode()
    return root


def test_an_action_under_another_name_is_the_same_action(run, tmp_path):
    found = []
    for key, *more in (["action"], ["actions", "--rename_map={actions: action}"]):
        root = moving(tmp_path / f"{key}_data", key)
        where = (f"--dataset.repo_id=t/{key}", f"--dataset.root={root}", *more)
        found.append(train(run(*where, "--steps=3", "--dataset.eval_split=0.4", out=key)))
    first, second = found
    assert equal(weights(first), weights(second))
    assert numbers(first) == numbers(second)
    assert second.report.is_file()


def test_a_mixture_in_clips_continues_exactly_whatever_memory_it_finds(run, tmp_path):
    roots = [
        small(tmp_path / n, seed=i, camera=(CAMERA, 32), lengths=(30 + i, 19))
        for i, n in enumerate("ab")
    ]
    mix = [
        {"repo_id": f"tests/{root.name}", "root": str(root), "weight": 2 - i}
        for i, root in enumerate(roots)
    ]
    options = (f"--dataset.mix={json.dumps(mix)}", "--dataset.shuffle=clips")
    derived = prepare(run(*options)).run.dataset
    assert (derived.shuffle, [numbers[2] for numbers in derived.mix_clips]) == ("clips", [1, 1])
    few = [[5, 4, 1], [3, 2, 1]]
    straight = train(run(*options, f"--dataset.mix_clips={few}", "--steps=8"))
    first = train(run(*options, f"--dataset.mix_clips={few}", "--steps=4", out="again"))
    assert resolve_run([f"--config={first.folder}/train_config.json"])[0].dataset.mix_clips == few
    more = ("--dataset.frame_memory=1GB", "--dataset.shuffle=auto", "--resume=true", "--steps=8")
    assert equal(weights(straight), weights(train(run(options[0], *more, out="again"))))
    plain = train(run(options[0], "--dataset.shuffle=full", "--steps=8", out="full"))
    assert not equal(weights(straight), weights(plain))


def test_augmentation_leaves_black_frames_black(run, entries):
    tfs = {"noise": {"type": "GaussianNoise", "kwargs": {"std": [5, 25]}}}
    noise = f"--dataset.image_transforms={json.dumps({'enable': True, 'tfs': tfs})}"
    prepared = prepare(run(entries("seen", one={"fill": True}), noise, "--batch_size=8"))
    with ExitStack() as live:
        reader = live.enter_context(
            Reader(
                prepared.data.train, prepared.reading.windows, threads=1, keys=prepared.reading.keys
            )
        )
        order = MixtureOrder.full(
            prepared.data.train.sizes(prepared.data.rows),
            prepared.data.train.shares(prepared.data.rows),
            1000,
        )
        feed = Feed(
            live.enter_context(Batches(reader, prepared.data.rows, order, 8)), prepared.run.policy, Pipeline("none", ()),  # noqa: E501
            prepared.device, 8, 0, prepared.reading.cameras, windows=("action",), augment=prepared.augment,  # noqa: E501
        )  # fmt: skip
        micro = feed.at(0).micros[0]
    dark = micro[CAMERA].flatten(1).abs().amax(1) == 0
    assert torch.equal(dark, micro[f"{CAMERA}_is_missing"])
    assert 0 < dark.sum() < 8


def test_frames_of_other_rates_are_taken_as_they_come_where_that_is_asked_for(run, entries):
    assert len(prepare(run(entries("one", "fast"), "--dataset.mix_any_fps=true")).data.rows) == 76


def test_the_same_dataset_twice_is_refused(capsys, tmp_path, entries):
    said = refused(capsys, tmp_path, entries("one", **{"one-again": {}}))
    assert "are the same dataset and share 4 episodes" in said


def test_the_list_may_stand_in_a_file_and_a_resume_keeps_it(run, entries, tmp_path):
    listed = tmp_path / "mix.yaml"
    listed.write_text(entries(**weighted(3, 1)).partition("=")[2])
    first = train(run(f"--dataset.mix={listed}", "--steps=2"))
    recorded = resolve_run([f"--config={first.folder}/train_config.json"])[0]
    assert [entry.weight for entry in recorded.dataset.mix] == [3, 1]
    with pytest.raises(KataError, match=r"dataset\.mix\[0\]\.weight was 3\.0 and is now 2\.0"):
        run(entries(**weighted(2, 1)), "--resume=true")


def test_the_example_config_is_a_run():
    example = resolve_run([f"--config={Path(__file__).parents[3]}/configs/mix.yaml"])[0]
    assert [(entry.called, entry.weight) for entry in example.dataset.mix] == [
        ("reach-a", 0.7),
        ("reach-b", 0.3),
    ]
