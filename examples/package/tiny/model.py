"""The model of this example."""

from torch import nn


def make_model(width: int, depth: int) -> nn.Module:
    """A perceptron with the given number of layers and their width."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(8, width), *layers, nn.Linear(width, 1))
