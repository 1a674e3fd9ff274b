"""A ResNet whose steps and checkpoints are quick."""

from torchvision.models.resnet import BasicBlock, ResNet


class NarrowResNet(ResNet):
    """A ResNet with a quarter of the channels in each stage, under torchvision's names.

    It has 0.3 million parameters instead of 11 million.
    """

    def _make_layer(self, block, planes, *args, **kwargs):
        return super()._make_layer(block, planes // 4, *args, **kwargs)


def build_narrow(real, name, weights=None, **options):
    """Stand in for `torchvision.models.get_model`, which is `real`."""
    if name != "resnet18":
        return real(name, weights=weights, **options)
    return NarrowResNet(BasicBlock, [1, 1, 1, 1], **options)
