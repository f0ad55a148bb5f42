"""The networks. Tests compare their parameter counts with published or hand-computed numbers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn

from bench.errors import BenchError, RunError
from bench.options import Options
from bench.stand_in_data import Shape

Builder = Callable[[Options, Shape, int], nn.Module]


class FashionCNN(nn.Module):
    """The source book's CNN (chapter 2): two 3x3 convolutions with pooling, then two linear layers.

    Input (N, C, H, W) float, output (N, classes) scores; 1,630,090 parameters with biases for (1, 28, 28). As in the
    book's notebook there is no activation between the linear layers.
    """

    def __init__(self, shape: Shape, classes: int, bias: bool = True, extra_layer: bool = False) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        widths = [64 * (height // 4) * (width // 4), 512] + ([256] if extra_layer else []) + [classes]
        self.classifier = nn.Sequential(
            *(nn.Linear(width, following, bias=bias) for width, following in zip(widths, widths[1:]))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.classifier(self.features(images))


def lenet5(shape: Shape, classes: int, widths: Sequence[int] = (6, 16, 120, 84), bias: bool = True) -> nn.Module:
    """Return LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, as in PyTorch's CIFAR-10 tutorial.

    62,006 parameters for (3, 32, 32) and 61,706 for (1, 28, 28), which is padded to 32 x 32 as in the paper.
    """
    if len(widths) != 4:
        raise BenchError(f"--widths of lenet5 wants 4 numbers, not {len(widths)}")
    channels, height, _ = shape
    first, second, third, fourth = widths
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, padding=(32 - height) // 2, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel_size=5, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 25, third, bias=bias),
        nn.ReLU(),
        nn.Linear(third, fourth, bias=bias),
        nn.ReLU(),
        nn.Linear(fourth, classes, bias=bias),
    )


def mlp(shape: Shape, classes: int, widths: Sequence[int] = (512, 256), bias: bool = True) -> nn.Module:
    """Return a multi-layer perceptron with ReLU; 535,818 parameters for (1, 28, 28)."""
    sizes = [shape[0] * shape[1] * shape[2], *widths]
    layers = [nn.Flatten()]
    for size, following in zip(sizes, sizes[1:]):
        layers += [nn.Linear(size, following, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))


def _rows(images: torch.Tensor) -> torch.Tensor:
    """Turn (N, C, H, W) into a sequence of its rows: (N, H, C * W)."""
    return images.permute(0, 2, 1, 3).flatten(2)


class RowTransformer(nn.Module):
    """A small Transformer encoder (Vaswani et al. 2017) that reads an image row by row.

    Two layers, width 64, 4 heads, inner width 128; 71,242 parameters for (1, 28, 28). No dropout, so that every
    environment computes the same.
    """

    def __init__(self, shape: Shape, classes: int, width: int = 64) -> None:
        super().__init__()
        channels, height, columns = shape
        self.embed = nn.Linear(channels * columns, width)
        self.positions = nn.Parameter(torch.randn(1, height, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.head(self.encoder(self.embed(_rows(images)) + self.positions).mean(1))


class RowLSTM(nn.Module):
    """An LSTM (Hochreiter & Schmidhuber 1997), width 128, that reads an image by rows; 82,186 parameters."""

    def __init__(self, shape: Shape, classes: int, width: int = 128) -> None:
        super().__init__()
        channels, _, columns = shape
        self.lstm = nn.LSTM(channels * columns, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores from the last row's state."""
        states, _ = self.lstm(_rows(images))
        return self.head(states[:, -1])


class ResNet(nn.Module):
    """torchvision's ResNet (He et al. 2016) on images of any size; grey images are repeated in three channels.

    ResNet-18 has 11,181,642 parameters for 10 classes (11,689,512 for ImageNet's 1000), ResNet-50 23,528,522.
    """

    def __init__(self, shape: Shape, classes: int, name: str) -> None:
        super().__init__()
        from bench.torchvision_import import torchvision

        self.grey = shape[0] == 1
        self.network = getattr(torchvision().models, name)(weights=None, num_classes=classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores."""
        return self.network(images.expand(-1, 3, -1, -1) if self.grey else images)


def build(options: Options, shape: Shape, classes: int) -> nn.Module:
    """Return the untrained network that the workload options ask for.

    A builder is built in, or ``package.module:function`` of another package (docs/workloads.md). Its arguments are all
    workload options, the shape (channels, height, width) of an image, and the number of classes. It returns a torch
    module that maps images (N, channels, height, width), floats from 0 to 1, to scores (N, classes) without softmax.
    torch's default generator, seeded with the option ``seed`` beforehand, gives its initial weights.
    """
    name = options["model"]
    model = (_BUILDERS.get(name) or _load_builder(name))(options, shape, classes)
    if not isinstance(model, nn.Module):
        raise RunError(f"model: {name} returned {type(model).__name__}, not a torch.nn.Module (docs/workloads.md)")
    return model


def _load_builder(reference: str) -> Builder:
    module, _, name = reference.partition(":")
    try:
        builder: Any = importlib.import_module(module)
        return reduce(getattr, name.split("."), builder)
    except (ImportError, AttributeError) as error:
        known_names = ", ".join(_BUILDERS)
        raise BenchError(f"model: {reference} cannot be had: {error} (built in: {known_names})") from error


def count_trainable_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _widths(options: Options) -> dict[str, list[int]]:
    return {"widths": options["widths"]} if options["widths"] else {}


_BUILDERS: Mapping[str, Builder] = {
    "fashion-cnn": lambda options, shape, classes: FashionCNN(shape, classes, options["bias"], options["extra_layer"]),
    "lenet5": lambda options, shape, classes: lenet5(shape, classes, bias=options["bias"], **_widths(options)),
    "mlp": lambda options, shape, classes: mlp(shape, classes, bias=options["bias"], **_widths(options)),
    "transformer": lambda _options, shape, classes: RowTransformer(shape, classes),
    "lstm": lambda _options, shape, classes: RowLSTM(shape, classes),
    "resnet18": lambda _options, shape, classes: ResNet(shape, classes, "resnet18"),
    "resnet50": lambda _options, shape, classes: ResNet(shape, classes, "resnet50"),
}
