"""A small run whose step is traced."""

from kata.policies import config_class
from kata.run import DatasetConfig, Run
from kata.spec import Feature, FeatureType

VECTORS = {
    "observation.state": Feature(FeatureType.STATE, (3,)),
    "observation.environment_state": Feature(FeatureType.ENV, (2,)),
}
SMALL_ACT = {
    **dict.fromkeys(("dim_model", "dim_feedforward"), 64),
    **dict.fromkeys(("n_encoder_layers", "n_vae_encoder_layers"), 1),
    **dict.fromkeys(("chunk_size", "n_action_steps"), 5),
    "n_heads": 2,
    "pretrained_backbone_weights": None,
    "use_vae": False,
    "push_to_hub": False,
}


def small_run(inputs=None, options=None, **fields):
    """Return a run of a small ACT without cameras."""
    action = {"action": Feature(FeatureType.ACTION, (2,))}
    config = config_class("act")(
        input_features=inputs or VECTORS, output_features=action, **SMALL_ACT | (options or {})
    )
    return Run(
        dataset=DatasetConfig(repo_id="user/data"),
        policy=config,
        optimizer=config.optimizer_preset(),
        **fields,
    )
