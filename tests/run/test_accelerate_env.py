"""What accelerate launch says in the environment becomes kata's options, or is refused by name."""

import json

import pytest

from kata.config import encode
from kata.errors import ConfigError
from kata.run import FsdpConfig, resolve_run

BASE = ["--policy.type=act", "--dataset.repo_id=x/y"]
PLAIN = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_USE_CPU": "False",
}
STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
ZERO = {
    "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "ACCELERATE_GRADIENT_CLIPPING": "1.0",  # noqa: E501
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",  # noqa: E501
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "false", STEPS: "1",  # noqa: E501
    "ACCELERATE_CONFIG_DS_FIELDS": "",
}  # fmt: skip
"""What the launcher says for --use_deepspeed with its questions answered."""
FSDP = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
    "FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_OFFLOAD_PARAMS": "false", "FSDP_MIN_NUM_PARAMS": "100000000",  # noqa: E501
    "FSDP_FORWARD_PREFETCH": "false", "FSDP_USE_ORIG_PARAMS": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",  # noqa: E501
    "FSDP_SYNC_MODULE_STATES": "true", "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
}  # fmt: skip
"""What it says for --use_fsdp --fsdp_version=2 and nothing else."""
MESH = {
    "ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "1",
    "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2", "PARALLELISM_CONFIG_TP_SIZE": "1", "PARALLELISM_CONFIG_CP_SIZE": "1",  # noqa: E501
    "PARALLELISM_CONFIG_CP_BACKEND": "torch", "PARALLELISM_CONFIG_SP_SIZE": "1",
    "PARALLELISM_CONFIG_SP_BACKEND": "deepspeed",
}  # fmt: skip


def resolved(*args, **environment):
    return resolve_run([*BASE, *args], 2, {**PLAIN, **environment})


def test_precision_accumulation_and_device_are_taken_and_said():
    run, notes = resolved(
        ACCELERATE_MIXED_PRECISION="bf16", ACCELERATE_USE_CPU="True", **{STEPS: "4"}
    )
    assert (run.precision, run.accumulation, run.policy.device, run.effective_batch) == (
        "bf16",
        4,
        "cpu",
        64,
    )
    assert (
        "taken from accelerate launch: accelerator.mixed_precision=bf16 "
        "(ACCELERATE_MIXED_PRECISION)" in notes
    )
    assert len(notes) == 3
    run, notes = resolved("--accelerator.mixed_precision=bf16", ACCELERATE_MIXED_PRECISION="bf16")
    assert run.precision == "bf16"


def test_nothing_asked_changes_nothing_but_the_engine():
    assert resolved() == resolve_run([*BASE, "--engine=accelerate"], 2)
    assert resolved("--accelerator.mixed_precision=bf16")[0].precision == "bf16"


def test_use_amp_counts_only_where_accelerate_does_not_set_the_precision():
    assert resolve_run([*BASE, "--policy.use_amp=true"], 2)[0].precision == "bf16"
    run, notes = resolved("--policy.use_amp=true")
    assert run.precision == "no"
    assert notes == ["policy.use_amp does not count: accelerate launch sets the precision (no)"]


def test_fsdp_is_taken():
    run, notes = resolved(**FSDP)
    assert (run.engine, run.mesh, run.fsdp) == ("accelerate", (1, 2), FsdpConfig())
    assert notes == ["taken from accelerate launch: parallelism.dp_shard=-1 (ACCELERATE_USE_FSDP)"]
    assert resolved("--engine=native", **FSDP)[0].mesh == (1, 2)
    more = {"FSDP_ACTIVATION_CHECKPOINTING": "true", "FSDP_RESHARD_AFTER_FORWARD": "false"}
    run, notes = resolved(**{**FSDP, **MESH, **more, "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"})
    assert (run.mesh, run.gradient_checkpointing, run.fsdp.reshard_after_forward) == (
        (1, 2),
        True,
        False,
    )
    assert (
        notes[-1]
        == "without effect here, from accelerate launch: FSDP_STATE_DICT_TYPE=FULL_STATE_DICT"
    )


@pytest.mark.parametrize(
    ("stated", "wrap"),
    [
        ({"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, FsdpConfig(wrap="none")),
        ({"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}, FsdpConfig()),
        (
            {
                "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
                "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block,Layer",
            },
            FsdpConfig(wrap="Block,Layer"),
        ),
        (
            {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"},
            FsdpConfig(wrap="size", min_num_params=100_000_000),
        ),
    ],
)
def test_what_fsdp_wraps_is_taken(stated, wrap):
    assert resolved(**FSDP, **stated)[0].fsdp == wrap


def test_deepspeed_is_taken():
    run, notes = resolved(**ZERO)
    assert (run.deepspeed.zero_stage, run.optimizer.grad_clip_norm, run.engine) == (
        2,
        1.0,
        "accelerate",
    )
    assert all(note.startswith("taken from accelerate launch: ") for note in notes)
    run, _ = resolved(ACCELERATE_USE_DEEPSPEED="true")
    assert run.deepspeed.zero_stage == 2, "Accelerate's own default"


def test_a_deepspeed_file_is_taken(tmp_path):
    file = tmp_path / "zero.json"
    stated = {
        "train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto", "gradient_accumulation_steps": 2,  # noqa: E501
        "gradient_clipping": 0.5, "bf16": {"enabled": True}, "fp16": {"enabled": False}, "steps_per_print": 10,  # noqa: E501
        "zero_optimization": {
            "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"},
            "overlap_comm": True, "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }  # fmt: skip
    file.write_text(json.dumps(stated))
    use = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(file)}
    run, notes = resolved(**use)
    assert (run.batch_size, run.accumulation, run.precision) == (4, 2, "bf16")
    assert run.optimizer.grad_clip_norm == 0.5
    zero = run.deepspeed
    assert (zero.zero_stage, zero.offload_optimizer_device, zero.offload_param_device) == (
        3,
        "cpu",
        "none",
    )
    assert zero.zero_optimization == {"overlap_comm": True, "reduce_bucket_size": 1000}
    assert "without effect" in notes[-1]
    assert "steps_per_print" in notes[-1]
    for wrong in (
        {**stated, "optimizer": {"type": "AdamW"}},
        {**stated, "activation_checkpointing": {"x": 1}},
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=r"optimizer|activation_checkpointing"):
            resolved(**use)


def test_compiling_is_taken():
    assert resolved(ACCELERATE_DYNAMO_BACKEND="INDUCTOR", ACCELERATE_DYNAMO_MODE="default")[
        0
    ].compile


def test_what_kata_does_not_know_is_named():
    notes = resolved(ACCELERATE_NEW_THING="7", ACCELERATE_CPU_AFFINITY="1")[1]
    assert notes == [
        "without effect here, from accelerate launch: ACCELERATE_CPU_AFFINITY=1, "
        "ACCELERATE_NEW_THING=7"
    ]


def test_a_resumed_run_may_change_its_engine(tmp_path):
    run, _ = resolved(f"--output_dir={tmp_path}", **ZERO)
    (tmp_path / "train_config.json").write_text(json.dumps(encode(run)))
    again, _ = resolve_run(["--resume=true", f"--output_dir={tmp_path}"], 2)
    assert (again.engine, again.deepspeed.zero_stage) == ("native", 0)


@pytest.mark.parametrize(
    ("args", "environment", "named"),
    [
        (["--accelerator.mixed_precision=fp16"], {"ACCELERATE_MIXED_PRECISION": "bf16"}, "mixed_precision=fp16"),  # noqa: E501
        (["--accelerator.gradient_accumulation.steps=2"], {STEPS: "4"}, f"{STEPS}=4"),
        (["--policy.device=cuda"], {"ACCELERATE_USE_CPU": "True"}, "policy.device=cuda"),
        ([], {"ACCELERATE_MIXED_PRECISION": "fp8"}, "mixed_precision=fp8"),
        ([], {**FSDP, "FSDP_VERSION": "1"}, "FSDP_VERSION=1"),
        ([], {**FSDP, "FSDP_OFFLOAD_PARAMS": "true"}, "FSDP_OFFLOAD_PARAMS=true"),
        ([], {**FSDP, "FSDP_SHARDING_STRATEGY": "HYBRID_SHARD"}, "FSDP_SHARDING_STRATEGY=HYBRID_SHARD"),  # noqa: E501
        ([], {**FSDP, **MESH, "PARALLELISM_CONFIG_TP_SIZE": "2"}, "PARALLELISM_CONFIG_TP_SIZE=2"),
        (["--parallelism.dp_shard=1"], FSDP, "parallelism.dp_shard=1"),
        (["--engine=native"], {**FSDP, "FSDP_RESHARD_AFTER_FORWARD": "false"}, "fsdp with engine=native"),  # noqa: E501
        (["--parallelism.dp_shard=2"], ZERO, "parallelism.dp_shard=2"),
        (["--checkpoint_format=dcp"], ZERO, "checkpoint_format=dcp"),
        (["--fsdp.wrap=none"], {}, "parallelism.dp_shard=1"),
        (["--engine=native"], ZERO, "engine=native"),
        (["--deepspeed.zero_stage=1"], ZERO, "deepspeed.zero_stage=1"),
        (["--optimizer.grad_clip_norm=2"], ZERO, "optimizer.grad_clip_norm=2"),
        ([], {**ZERO, "ACCELERATE_MIXED_PRECISION": "fp16"}, "mixed_precision=fp16 with deepspeed"),
        ([], {**ZERO, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "nvme"}, "offload_optimizer_device=nvme"),  # noqa: E501
        ([], {**ZERO, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu"}, "offload_param_device=cpu"),  # noqa: E501
        ([], {**ZERO, "ACCELERATE_DEEPSPEED_CONFIG_FILE": "nowhere.json"}, "nowhere.json"),
        (["--policy.type=vqbet"], ZERO, "policy vqbet with deepspeed"),
        (["--deepspeed.zero_stage=2", "--engine=native"], {}, "deepspeed.zero_stage with engine"),
        ([], {"ACCELERATE_USE_MEGATRON_LM": "true"}, "ACCELERATE_USE_MEGATRON_LM"),
        ([], {"ACCELERATE_TORCH_DEVICE": "cuda:1"}, "ACCELERATE_TORCH_DEVICE"),
        ([], {"ACCELERATE_DYNAMO_BACKEND": "EAGER"}, "ACCELERATE_DYNAMO_BACKEND=EAGER"),
        (["--compile=false"], {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "compile=false"),
    ],
)  # fmt: skip
def test_contradictions_and_what_kata_cannot_do_are_refused_by_name(args, environment, named):
    with pytest.raises(ConfigError) as caught:
        resolved(*args, **environment)
    assert named in caught.value.what
    assert caught.value.remedy
