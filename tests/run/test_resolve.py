import json
from itertools import pairwise

import pytest

from kata.config import encode, names_where
from kata.errors import ConfigError, KataError, PolicyError
from kata.optim.schedule import lr_factor
from kata.run import Run, resolve_run
from kata.run.lerobot_options import ABSENT
from kata.units import num_bytes

BASE = ["--policy.type=act", "--dataset.repo_id=user/data"]


def run_of(*args: str) -> Run:
    return resolve_run([*BASE, *args])[0]


def test_defaults_are_lerobots():
    run = run_of()
    assert (run.steps, run.batch_size, run.seed, run.log_freq, run.save_freq, run.num_workers) == (
        100_000, 8, 1000, 200, 20_000, 4,
    )  # fmt: skip
    assert run.policy.type == "act"
    assert run.optimizer.type == "adamw"
    assert (run.optimizer.lr, run.optimizer.weight_decay, run.optimizer.grad_clip_norm) == (
        1e-5,
        1e-4,
        10.0,
    )
    assert run.scheduler is None


def test_optimizer_flags_are_honoured_over_the_preset():
    run = run_of("--optimizer.lr=3e-4", "--optimizer.grad_clip_norm=1")
    assert (run.optimizer.lr, run.optimizer.weight_decay, run.optimizer.grad_clip_norm) == (
        3e-4,
        1e-4,
        1.0,
    )


def test_another_optimizer_starts_from_its_own_defaults():
    assert run_of("--optimizer.type=sgd", "--optimizer.lr=0.1").optimizer.weight_decay == 0.0


def test_the_resolved_config_gives_the_same_run_again(tmp_path):
    run = run_of(
        "--optimizer.lr=3e-4",
        "--scheduler.type=cosine_decay_with_warmup",
        "--steps=100",
        "--ema.enable=true",
    )
    path = tmp_path / "train_config.json"
    path.write_text(json.dumps(encode(run)))
    assert resolve_run([f"--config={path}"])[0] == run


def test_flags_win_over_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "policy: {type: act, chunk_size: 7, n_action_steps: 7}\ndataset: {repo_id: a/b}\nsteps: 5\n"
    )
    run = resolve_run([f"--config={path}", "steps=6", "--policy.n_action_steps=3"])[0]
    assert (run.steps, run.policy.chunk_size, run.policy.n_action_steps, run.dataset.repo_id) == (
        6,
        7,
        3,
        "a/b",
    )


def test_a_schedule_is_shortened_to_the_run_and_says_so():
    run, notes = resolve_run([*BASE, "--scheduler.type=cosine_decay_with_warmup", "--steps=3000"])
    assert (run.scheduler.num_decay_steps, run.scheduler.num_warmup_steps) == (3000, 100)
    assert any("30000 -> 3000" in note for note in notes)


def test_use_amp_means_bf16_unless_a_precision_is_stated():
    assert run_of("--policy.use_amp=true").precision == "bf16"
    assert run_of("--policy.use_amp=true", "--accelerator.mixed_precision=fp16").precision == "fp16"
    assert run_of("--accelerator.mixed_precision=no").precision == "no", "which YAML reads as false"
    assert run_of().precision == "no"


WRONG = [
    ("--stpes=3", "did you mean --steps"),
    ("--policy.chunk_sise=3", "did you mean --policy.chunk_size"),
    ("--policy.chunk_size=ten", "policy.chunk_size=ten"),
    ("--optimizer.lrr=1", "did you mean --optimizer.lr"),
    ("--optimizer.type=adamww", "did you mean 'adamw'"),
    ("--scheduler.type=cosine", "scheduler.type=cosine"),
    ("--steps=0", "steps=0"),
    ("--steps=-5", "steps=-5"),
    ("--steps=many", "steps=many"),
    ("--batch_size=0", "batch_size=0"),
    ("--optimizer.lr=-1", "optimizer.lr=-1"),
    ("--dataset.episodes=[]", "episodes=[]"),
    ("--dataset.episodes=[1,1]", "more than once"),
    ("--dataset.episodes=some", "available"),
    ("--dataset.eval_split=1.5", "eval_split=1.5"),
    ("--eval_steps=10", "eval_split"),
    ("--env_eval_freq=10", "--env.type=kata"),
    ("--eval.n_episodes=0", "--env.type"),
    ("--accelerator.mixed_precision=bf61", "did you mean 'bf16'"),
    ("--accelerator.gradient_accumulation.steps=0", "at least 1"),
    ("--dataset=5", "not a group"),
    ("--policy.normalization_mapping={STATE: MINMAX}", "normalization_mapping"),
    ("--ema.power=x", "ema.power=x"),
    ("--use_policy_training_preset=false", "optimizer"),
]


@pytest.mark.parametrize(("flag", "expected"), WRONG)
def test_impossible_options_are_refused_with_the_nearest_thing(flag, expected):
    with pytest.raises(KataError) as caught:
        run_of(flag)
    assert expected in str(caught.value)
    assert caught.value.rule
    assert caught.value.remedy


def test_an_unknown_policy_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'act'"):
        resolve_run(["--policy.type=acd", "--dataset.repo_id=a/b"])


def test_policy_and_dataset_must_be_named():
    with pytest.raises(ConfigError, match="policy"):
        resolve_run(["--dataset.repo_id=a/b"])
    with pytest.raises(ConfigError, match="repo_id"):
        resolve_run(["--policy.type=act"])


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("data/my-arm", "my-arm"),
        ("data/my-arm/", "my-arm"),
        ("s3://bucket/sets/pour", "pour"),
        ("hf://datasets/lab/pour", "pour"),
    ],
)
def test_a_dataset_that_only_a_root_names_is_called_by_its_folder(root, name, tmp_path):
    run = resolve_run(["--policy.type=act", f"--dataset.root={root}"])[0]
    assert run.dataset.repo_id == run.dataset.name == name
    (tmp_path / "train_config.json").write_text(json.dumps(encode(run)))
    moved = [f"--config={tmp_path / 'train_config.json'}", "--dataset.root=elsewhere"]
    assert resolve_run(moved)[0].dataset.repo_id == name, "the folder may move"
    named = resolve_run([*BASE, f"--dataset.root={root}"])[0]
    assert named.dataset.repo_id == "user/data"


@pytest.mark.parametrize(
    "name", [n for n in ABSENT if n != "job" and not n.endswith("context_parallel")]
)
def test_lerobots_other_options_are_refused_by_name(name):
    with pytest.raises(ConfigError) as caught:
        run_of(f"--{name}=something-else")
    assert name in str(caught.value)
    assert caught.value.rule


@pytest.mark.parametrize(
    "flag",
    ["--eval.recording=true", "--job.target=a10g", "--parallelism.context_parallel.ring_degree=2"],
)
def test_groups_that_kata_lacks_are_refused_by_name(flag):
    with pytest.raises(ConfigError, match=flag[2:].partition("=")[0]):
        run_of(flag)


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [
        ("--eval_freq=100", "use --env_eval_freq"),
        ("--job.target=a10g", "kata launch --target=hf:"),
        ("--tolerance_s=1", "leave out --tolerance_s"),
    ],
)
def test_the_remedy_names_the_option_that_does_the_same(flag, remedy):
    with pytest.raises(ConfigError) as caught:
        run_of(flag)
    assert remedy in str(caught.value)


def test_a_saved_lerobot_config_is_accepted_where_its_other_options_change_nothing(tmp_path):
    saved = {
        "dataset": {
            "repo_id": "a/b", "repo_type": "dataset", "root": None, "episodes": None, "revision": None,  # noqa: E501
            "image_transforms": {"enable": False, "max_num_transforms": 3, "random_order": False,
                                 "tfs": {"x": {"weight": 1.0, "type": "Identity", "kwargs": {}}}},
            "use_imagenet_stats": True, "video_backend": "torchcodec", "return_uint8": False,
            "depth_output_unit": "mm", "streaming": False, "eval_split": 0.0,
        },
        "env": None, "policy": {"type": "act", "use_peft": False}, "reward_model": None, "resume": False,  # noqa: E501
        "persistent_workers": True, "dataloader_multiprocessing_context": "spawn", "env_eval_freq": 20000,  # noqa: E501
        "tolerance_s": 1e-4, "save_checkpoint_to_hub": False, "sample_weighting": None, "peft": None,  # noqa: E501
        "eval": {"n_episodes": 50, "batch_size": 2, "use_async_envs": True, "recording": False,
                 "recording_repo_id": None, "recording_private": False},
        "job": {"target": None, "image": "i", "timeout": "2d", "detach": False, "tags": []},
        "wandb": {"enable": False, "disable_artifact": False, "project": "lerobot"},
        "checkpoint_path": None,
    }  # fmt: skip
    path = tmp_path / "train_config.json"
    path.write_text(json.dumps(saved))
    assert resolve_run([f"--config_path={path}"])[0].dataset.repo_id == "a/b"


def pretrained(folder, **fields):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"type": "act", **fields}))
    return folder


def test_a_pretrained_folder_gives_the_config_and_flags_go_over_it(tmp_path):
    folder = pretrained(
        tmp_path / "pretrained_model", chunk_size=9, n_action_steps=9, from_another_version=1
    )
    run, notes = resolve_run(
        [f"--policy.path={folder}", "--dataset.repo_id=a/b", "--policy.n_action_steps=2"]
    )
    assert (run.policy.chunk_size, run.policy.n_action_steps) == (9, 2)
    assert run.policy.pretrained_path == str(folder)
    assert any("from_another_version" in note for note in notes)


def test_a_folder_stays_the_same_from_every_working_directory(tmp_path, monkeypatch):
    pretrained(tmp_path / "base")
    pretrained(tmp_path / "user" / "on-the-hub")
    monkeypatch.chdir(tmp_path)
    run = resolve_run(["--policy.path=base", "--dataset.repo_id=a/b"])[0]
    assert run.policy.pretrained_path == str(tmp_path / "base")
    (tmp_path / "words").mkdir()
    for given, kept in (("words", tmp_path / "words"), ("some/words", "some/words")):
        given = ["--policy.type=pi0", f"--policy.text_tokenizer_name={given}"]
        assert resolve_run([*given, *BASE[1:]])[0].policy.text_tokenizer_name == str(kept)


def test_inputs_that_the_base_does_not_know_are_refused(tmp_path):
    known = {"observation.images.top": {"type": "VISUAL", "shape": [3, 8, 8]}}
    folder = pretrained(tmp_path / "base", input_features=known)
    given = '--policy.input_features={"observation.images.topp": {type: VISUAL, shape: [3, 8, 8]}}'
    with pytest.raises(PolicyError, match=r"(?s)topp is no input of.*did you mean.*images\.top"):
        resolve_run([f"--policy.path={folder}", "--dataset.repo_id=a/b", given])
    other = '--policy.input_features={"observation.images.top": {type: VISUAL, shape: [3, 4, 4]}}'
    run = resolve_run([f"--policy.path={folder}", "--dataset.repo_id=a/b", other])[0]
    assert run.policy.cameras["observation.images.top"].shape == (3, 4, 4)


def test_a_base_that_its_own_run_may_delete_is_told(tmp_path):
    folder = pretrained(tmp_path / "run/checkpoints/000010/pretrained_model")
    record = tmp_path / "run/train_config.json"

    def notes(*options):
        given = [f"--policy.path={folder}", "--dataset.repo_id=a/b", *options]
        return [each for each in resolve_run(given)[1] if "may delete" in each]

    record.write_text('{"keep_last": 0, "keep_every": 0}')
    assert notes("--peft.r=2") == []
    record.write_text('{"keep_last": 2, "keep_every": 0}')
    (note,) = notes("--peft.r=2")
    assert "(keep_last=2); a copy stays: kata checkpoint export" in note
    assert notes("--checkpoint_frozen=whole") == []


def test_path_and_type_together_are_refused(tmp_path):
    folder = pretrained(tmp_path / "p")
    with pytest.raises(ConfigError, match="leave out one"):
        resolve_run([f"--policy.path={folder}", "--policy.type=act", "--dataset.repo_id=a/b"])


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"config\.json"):
        resolve_run([f"--policy.path={tmp_path}", "--dataset.repo_id=a/b"])


def resumable(tmp_path, *args):
    run = run_of(f"--output_dir={tmp_path}", *args)
    (tmp_path / "train_config.json").write_text(json.dumps(encode(run)))


def test_resuming_needs_only_the_folder(tmp_path):
    resumable(tmp_path, "--steps=50", "--policy.chunk_size=7", "--policy.n_action_steps=7")
    run = resolve_run(["--resume=true", f"--output_dir={tmp_path}", "--steps=60"])[0]
    assert (run.steps, run.policy.chunk_size, run.resume) == (60, 7, True)


def test_a_time_limit_holds_for_the_start_that_names_it(tmp_path):
    first = run_of("--max_time=2h", f"--output_dir={tmp_path}")
    (tmp_path / "train_config.json").write_text(json.dumps(encode(first)))
    again = ["--resume=true", f"--output_dir={tmp_path}"]
    assert resolve_run(again)[0].max_time is None
    assert resolve_run([*again, "--max_time=30m"])[0].max_time == "30m"
    assert resolve_run([*BASE, *again, "--max_time=2h"])[0].max_time == "2h"


def test_what_decides_the_numbers_is_not_changed_on_resume(tmp_path):
    resumable(tmp_path)
    with pytest.raises(ConfigError) as caught:
        resolve_run(["--resume=true", f"--output_dir={tmp_path}", "--optimizer.lr=0.5"])
    assert "optimizer.lr was 1e-05 and is now 0.5" in str(caught.value)


SCHEDULES = {
    "constant": (),
    "warm-up": ("--scheduler.type=constant_with_warmup", "--scheduler.num_warmup_steps=30"),
    "warm-up longer than the run": ("--scheduler.type=constant_with_warmup",),
    "decay to a floor": ("--scheduler.type=cosine_decay_with_warmup",),
    "decay that ends early": (
        "--scheduler.type=cosine_decay_with_warmup",
        "--scheduler.num_decay_steps=60",
    ),
    "diffuser constant": ("--scheduler.type=diffuser", "--scheduler.name=constant"),
    "diffuser warm-up": ("--scheduler.type=diffuser", "--scheduler.name=constant_with_warmup"),
    "cosine": ("--scheduler.type=cosine_annealing_with_warmup", "--scheduler.num_warmup_steps=10"),
    "diffuser cosine": ("--scheduler.type=diffuser", "--scheduler.name=cosine"),
    "diffuser linear": ("--scheduler.type=diffuser", "--scheduler.name=linear"),
}
DRAWN_OVER_THE_RUN = {"cosine", "diffuser cosine", "diffuser linear"}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("whole_command", [False, True])
def test_more_steps_keep_every_old_rate_and_do_not_jump_or_are_refused(
    tmp_path, name, whole_command
):
    resumable(tmp_path, "--steps=100", *SCHEDULES[name])
    before = resolve_run([*BASE, "--steps=100", *SCHEDULES[name]])[0]
    again = [*BASE, *SCHEDULES[name]] if whole_command else []
    args = [*again, "--resume=true", f"--output_dir={tmp_path}", "--steps=250"]
    if name in DRAWN_OVER_THE_RUN:
        with pytest.raises(ConfigError, match="learning rate of step"):
            resolve_run(args)
        return
    now = resolve_run(args)[0]
    rates = [lr_factor(now.scheduler, step, 250) for step in range(250)]
    assert rates[:100] == [lr_factor(before.scheduler, step, 100) for step in range(100)]
    steepest = max(abs(b - a) for a, b in pairwise(rates[:100]))
    assert abs(rates[100] - rates[99]) <= steepest + 1e-12


@pytest.mark.parametrize(
    "option",
    ["--optimizer.lr=1e-3", "--policy.optimizer_lr=1e-3", "--policy.optimizer_lr_backbone=1e-3",
     "--scheduler.type=constant_with_warmup", "--scheduler.type=cosine_decay_with_warmup", "--optimizer.type=sgd"],  # noqa: E501
)  # fmt: skip
def test_another_learning_rate_on_resume_is_refused_never_ignored(tmp_path, option):
    resumable(tmp_path, "--steps=100")
    with pytest.raises(ConfigError, match="resume:"):
        resolve_run(["--resume=true", f"--output_dir={tmp_path}", option])


def test_fewer_steps_keep_the_rates_or_are_refused(tmp_path):
    resumable(tmp_path, "--steps=100", "--scheduler.type=cosine_decay_with_warmup")
    with pytest.raises(ConfigError, match="learning rate of step"):
        resolve_run(["--resume=true", f"--output_dir={tmp_path}", "--steps=50"])
    resumable(tmp_path, "--steps=100")
    assert resolve_run(["--resume=true", f"--output_dir={tmp_path}", "--steps=50"])[0].steps == 50


def test_a_resumed_run_keeps_the_order_that_was_chosen(tmp_path):
    """Memory may be another now; the order of the samples is the recorded one."""
    resumable(tmp_path, "--dataset.shuffle=clips", "--dataset.clip_pool=40")
    again = ["--resume=true", f"--output_dir={tmp_path}"]
    run = resolve_run(
        [*again, "--dataset.shuffle=auto", "--dataset.clip_pool=0", "--dataset.frame_memory=1GB"]
    )[0]
    assert (run.dataset.shuffle, run.dataset.clip_pool, run.dataset.frame_memory) == (
        "clips",
        40,
        "1GB",
    )
    with pytest.raises(ConfigError, match=r"dataset\.clip_pool was 40 and is now 50"):
        resolve_run([*again, "--dataset.clip_pool=50"])


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("shuffle=clip", "did you mean 'clips'"),
        ("clip_pool=40", "--dataset.shuffle=clips"),
        ("clip_frames=-1", "at least 0"),
        ("frame_memory=lots", "for example --dataset.frame_memory=4GB"),
        ("frame_memory=0", "for example --dataset.frame_memory=4GB"),
    ],
)
def test_impossible_orders_are_refused(option, words):
    with pytest.raises(ConfigError, match=words):
        resolve_run(["--policy.type=act", "--dataset.repo_id=a/b", f"--dataset.{option}"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4e9), ("512MiB", 2**29), ("1.5 tb", 1.5e12), ("12", 12), ("3k", 3000)],
)
def test_bytes_are_read_with_their_unit(text, size):
    assert num_bytes(text) == size


def test_more_steps_are_refused_where_they_would_bend_the_schedule(tmp_path):
    resumable(tmp_path, "--scheduler.type=cosine_annealing_with_warmup", "--steps=100")
    with pytest.raises(ConfigError, match="learning rate"):
        resolve_run(["--resume=true", f"--output_dir={tmp_path}", "--steps=200"])


MAY_CHANGE = """
steps max_time resume output_dir num_workers prefetch_factor batch_size compile dist_timeout log_freq
max_bad_steps on_bad_frame loss_spike save_freq save_checkpoint checkpoint_format checkpoint_frozen missing_cameras fit
gradient_checkpointing keep_last keep_every keep_best accelerator.gradient_accumulation ddp.bucket_mb
parallelism engine fsdp deepspeed dataset.cache dataset.cache_dir dataset.cache_size
dataset.frame_memory dataset.streaming dataset.buffer_gb eval_steps env_eval_freq env_eval_at_start env eval wandb tensorboard trackio
job_name force scheduler policy.device policy.push_to_hub policy.repo_id policy.private policy.tags
policy.license policy.pretrained_path
"""  # noqa: E501


def test_options_that_a_resumed_run_may_set_differently_are_those_that_change_no_number():
    assert set(names_where(run_of(), lambda each: each.may_change)) == set(MAY_CHANGE.split())


def test_options_that_ranks_may_set_differently_are_a_machines_own():
    mix = "--dataset.mix=[{repo_id: a/b, root: x}, {repo_id: c/d}]"
    run = resolve_run(["--policy.type=act", mix])[0]
    own = {"dataset.root", "dataset.cache_dir", "dataset.cache_size", "dataset.frame_memory"}
    own |= {"dataset.streaming", "dataset.buffer_gb"}
    own |= {"dataset.mix[0].root", "dataset.mix[1].root"}
    assert set(names_where(run, lambda each: each.per_machine)) == own


def test_a_value_of_a_file_is_read_as_its_options_type(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "policy: {type: act}\ndataset: {repo_id: a/b, episodes: 0}\njob_name: 0123\n"
        "accelerator.mixed_precision: no\nsteps: 1e3\nresume: off\n"
    )
    run = resolve_run([f"--config={path}"])[0]
    assert (run.job_name, run.precision, run.steps, run.resume) == ("0123", "no", 1000, False)
    assert run.dataset.episodes == [0]
