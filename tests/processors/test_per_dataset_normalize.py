"""A batch of several datasets is normalised as each dataset's own step would normalise its
samples.
"""

import pytest
import torch

from kata.processors import Normalize, PerDataset, Unnormalize
from kata.spec import Feature, FeatureType, NormMode

FEATURES = {
    "action": Feature(FeatureType.ACTION, (3,)),
    "observation.state": Feature(FeatureType.STATE, (3,)),
    "observation.images.top": Feature(FeatureType.VISUAL, (3, 4, 4)),
}


def steps(kind, mode, count=3):
    draw = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        stats = {}
        for key, feature in FEATURES.items():
            shape = (3, 1, 1) if feature.type is FeatureType.VISUAL else (3,)
            low = torch.rand(shape, generator=draw)
            high = low + 1 + torch.rand(shape, generator=draw)
            stats[key] = dict.fromkeys(("min", "q01", "q10", "mean"), low) | dict.fromkeys(
                ("max", "q99", "q90", "std"), high
            )
        made.append(kind(FEATURES, {t.value: mode for t in FeatureType}, stats))
    return made


@pytest.mark.parametrize("kind", [Normalize, Unnormalize])
@pytest.mark.parametrize("mode", list(NormMode))
def test_every_sample_gets_its_own_datasets_statistics(kind, mode):
    each = steps(kind, mode)
    batch = {
        "action": torch.randn(5, 7, 3),
        "observation.state": torch.randn(5, 3),
        "observation.images.top": torch.rand(5, 3, 4, 4),
        "dataset_index": torch.tensor([2, 0, 1, 1, 2]),
    }
    out = PerDataset(tuple(each))(batch)
    for place, number in enumerate(batch["dataset_index"].tolist()):
        alone = each[number]({key: batch[key][place : place + 1] for key in FEATURES})
        for key in FEATURES:
            assert torch.equal(out[key][place : place + 1], alone[key])


def test_it_belongs_to_no_checkpoint():
    with pytest.raises(AssertionError):
        PerDataset(tuple(steps(Normalize, NormMode.MEAN_STD))).config()
