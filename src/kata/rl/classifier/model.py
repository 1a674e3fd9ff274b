"""The reward classifier: encoder, pooled features per camera, a head. Names are LeRobot's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from kata.policies.gaussian_actor.encoder import SpatialEmbedding
from kata.rl.classifier.config import ClassifierConfig
from kata.rl.classifier.encoder import ResNet


class Classifier(nn.Module):
    """Network from pictures to the logit of success.

    LeRobot fixes the feature map to 4 x 4, so to pictures of 128 x 128; here it follows from the
    size of the pictures. All but a pretrained encoder learns; LeRobot leaves the pooling and the
    linear layers at their random weights.

    Args:
        config: with its cameras.
        encoder: shared by all cameras.
    """

    def __init__(self, config: ClassifierConfig, encoder: ResNet) -> None:
        super().__init__()
        self.cameras = list(config.input_features)
        self.encoder = encoder
        latent, sums = config.latent_dim, config.image_embedding_pooling_dim
        self.encoders = nn.ModuleDict()
        for key, feature in config.input_features.items():
            with torch.no_grad():
                was = encoder.training
                size = encoder.eval()(torch.zeros(1, *feature.shape)).shape[2:]
                encoder.train(was)
            self.encoders[key.replace(".", "_")] = nn.Sequential(
                nn.Identity(),  # LeRobot's place of the encoder
                SpatialEmbedding(encoder.channels, (size[0], size[1]), sums),
                nn.Dropout(config.dropout_rate),
                nn.Linear(encoder.channels * sums, latent),
                nn.LayerNorm(latent),
                nn.Tanh(),
            )
        self.classifier_head = nn.Sequential(
            nn.Linear(latent * len(self.cameras), config.hidden_dim),
            nn.Dropout(config.dropout_rate),
            nn.LayerNorm(config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, 1),
        )

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B,) for normalized frames (B, 3, H, W) by camera."""
        parts = [
            head(self.encoder(seen[key]))
            for key, head in zip(self.cameras, self.encoders.children(), strict=True)
        ]
        return self.classifier_head(torch.cat(parts, -1)).squeeze(-1)
