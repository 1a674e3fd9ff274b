"""The options of GR00T N1.7 as fields, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kata.config import option
from kata.policies.groot.base_model import COSMOS, GROOT
from kata.policies.vla import ChunkConfig
from kata.spec import FeatureType, NormMode

UNREAD = "A field of LeRobot's without effect."


def _identity() -> dict[str, NormMode]:
    kinds = (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION)
    return {kind.value: NormMode.IDENTITY for kind in kinds}


@dataclass(frozen=True, kw_only=True)
class GrootOptions(ChunkConfig):
    """GR00T's options, without what follows from them."""

    lora_targets: ClassVar[str] = r".*action_head\..*\.attn1\.(to_q|to_v)"

    chunk_size: int = 40
    n_action_steps: int = 40
    max_state_dim: int = 132
    max_action_dim: int = 132
    normalization_mapping: dict[str, NormMode] = field(default_factory=_identity)
    base_model_path: str | None = option(
        None,
        f"NVIDIA's model that training starts from: a raw folder, or a Hub name; null takes "
        f"{GROOT}.",
        is_pretrained=True,
    )
    action_decode_transform: str | None = option(
        "auto",
        "What becomes of actions last: libero turns the gripper's numbers into LIBERO's signs, "
        "none leaves them, auto does so for the embodiment_tag libero_sim.",
    )
    embodiment_tag: str = option(
        "new_embodiment", "Robot, by its name in the base model, whose weights are used."
    )
    tune_llm: bool = option(False, "Train the language model.")
    tune_visual: bool = option(False, "Train the image encoder.")
    tune_projector: bool = option(True, "Train the maps of state and actions.")
    tune_diffusion_model: bool = option(True, "Train the diffusion transformer.")
    tune_vlln: bool = option(True, "Train the blocks that mix features, and the norm before them.")
    tune_top_llm_layers: int = option(0, "Train this many last layers of the language model.")
    num_inference_timesteps: int | None = option(
        None, "Integration steps of a chunk in acting; null takes the base model's.", least=1
    )
    rtc_ramp_rate: float | None = option(
        None,
        "How fast a chunk that continues another is free of it; null takes the base model's.",
        above=0,
    )
    use_flash_attention: bool = option(
        False, "A field of LeRobot's without effect: torch chooses fused attention itself."
    )
    use_relative_actions: bool = option(
        False,
        "Learn actions minus the state at which a chunk begins, normalized step by step.",
    )
    relative_exclude_joints: list[str] = option(
        list, "Parts of the names of action numbers that stay absolute with use_relative_actions."
    )
    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.9, 0.999)
    optimizer_weight_decay: float = 1e-5
    warmup_ratio: float = option(
        0.05, "Share of max_steps in which the preset's learning rate rises.", least=0, most=1
    )
    use_bf16: bool = option(
        True, "Compute in bf16 unless accelerator.mixed_precision says otherwise."
    )
    model_params_fp32: bool = option(
        True, "Hold weights in float32; false holds them in the base model's precision."
    )
    image_size: tuple[int, int] = option((256, 256), UNREAD)
    tokenizer_assets_repo: str | None = option(
        None, "A field of GR00T N1.5, which LeRobot has removed; null, or it is refused."
    )
    lora_rank: int = option(
        0, "A field that LeRobot ignores; above 0 is refused: --peft.r does it."
    )
    lora_alpha: int = option(16, UNREAD)
    lora_dropout: float = option(0.1, UNREAD)
    lora_full_model: bool = option(False, "A field that LeRobot ignores; true is refused.")
    video_backend: str = option("decord", UNREAD)
    balance_dataset_weights: bool = option(True, UNREAD)
    balance_trajectory_weights: bool = option(True, UNREAD)
    dataset_paths: list[str] | None = option(None, UNREAD)
    output_dir: str = option("./tmp/gr00t", UNREAD)
    save_steps: int = option(1000, UNREAD)
    max_steps: int = option(
        10_000, "Steps that warmup_ratio is a share of; --steps sets the length of a run.", least=1
    )
    batch_size: int = option(32, f"{UNREAD} --batch_size is kata's.")
    dataloader_num_workers: int = option(8, UNREAD)
    report_to: str = option("wandb", UNREAD)
    resume: bool = option(False, f"{UNREAD} --resume is kata's.")
    load_base_weights: bool = option(
        True,
        "Start from the weights of base_model_path. false leaves them random, which is right only "
        "where policy.path brings all weights.",
        is_own=True,
    )
    text_tokenizer_name: str = option(
        COSMOS,
        "Tokenizer of the prompt: a Hub name or a folder.",
        is_own=True,
        is_pretrained=True,
    )
    cached_prompt_tokens: int = option(
        64,
        "Tokens of a prompt beside those of images that --dataset.cache=prefix keeps room for.",
        least=1,
        is_own=True,
    )
    attend_padding: bool = option(
        False,
        "Let features read the padding of shorter sentences in training, as LeRobot does: results "
        "then depend on the other samples of a batch.",
        is_own=True,
    )
    frozen_dtype: str = option(
        "float32",
        "Precision in which frozen parts of the backbone are held, computed and written. NVIDIA "
        "publishes bfloat16, which halves their memory.",
        choices=("float32", "bfloat16"),
        is_own=True,
    )
    action_feature_names: list[str] | None = option(
        None,
        "A name for each number of the action, with use_relative_actions; null takes the "
        "dataset's.",
        is_own=True,
    )
