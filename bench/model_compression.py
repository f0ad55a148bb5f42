"""Compression of a trained model: int8 quantisation and pruning."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn
from torch.nn.utils import prune

from bench.dataset_tensors import Batch
from bench.options import Options
from bench.steps import pretrain

#: The layers whose weights are pruned.
_LAYERS = (nn.Linear, nn.Conv2d)

Pruner = Callable[[nn.Module, float], None]


def prune_weights(model: nn.Module, options: Options) -> None:
    """Set weights to zero as the prune options ask."""
    if options["prune"] != "none":
        _PRUNERS[options["prune"]](model, options["prune_amount"])


def quantize(model: nn.Module, source: Iterator[Batch], options: Options) -> nn.Module:
    """Return the int8 model that the options ask for; ``source`` yields batches for calibration."""
    if options["quantize"] == "none":
        return model
    return _QUANTIZERS[options["quantize"]](model, source)


def size_bytes(model: nn.Module) -> int:
    """Return the size of the model's saved weights."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.tell()


def sparsity(model: nn.Module) -> float | None:
    """Return the share of zeros among the prunable weights, or None if the model has no such layers."""
    weights = [layer.weight.detach() for layer in model.modules() if isinstance(layer, _LAYERS)]
    total = sum(weight.numel() for weight in weights)
    return sum((weight == 0).sum().item() for weight in weights) / total if total else None


class _BelowThreshold(prune.BasePruningMethod):
    """A custom pruning method: it removes weights below a share of the layer's mean magnitude.

    The threshold is proportional to ``amount``. Unlike with the built-in methods, how many weights a layer loses
    depends on its own distribution.
    """

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        """Return a mask with 1 for the weights to keep."""
        return default_mask * (t.abs() >= 2 * self.amount * t.abs().mean()).to(t.dtype)


def _layers(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if isinstance(layer, _LAYERS)]


def _each(apply: Callable[[nn.Module, float], object]) -> Pruner:
    def pruner(model: nn.Module, amount: float) -> None:
        # The outputs of the last layer are the classes, which structured pruning must not remove.
        layers = _layers(model)
        for layer in layers[:-1] or layers:
            apply(layer, amount)
            prune.remove(layer, "weight")

    return pruner


def _global(model: nn.Module, amount: float) -> None:
    layers = _layers(model)
    prune.global_unstructured(
        [(layer, "weight") for layer in layers], pruning_method=prune.L1Unstructured, amount=amount
    )
    for layer in layers:
        prune.remove(layer, "weight")


_PRUNERS: Mapping[str, Pruner] = {
    "local": _each(lambda layer, amount: prune.l1_unstructured(layer, "weight", amount=amount)),
    "global": _global,
    "structured": _each(lambda layer, amount: prune.ln_structured(layer, "weight", amount=amount, n=2, dim=0)),
    "custom": _each(lambda layer, amount: _BelowThreshold.apply(layer, "weight", amount)),
}


def _dynamic(model: nn.Module, source: Iterator[Batch]) -> nn.Module:
    from torch.ao import quantization

    del source
    return quantization.quantize_dynamic(model.eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)


def _static(model: nn.Module, source: Iterator[Batch]) -> nn.Module:
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    images = next(source).images
    prepared = quantize_fx.prepare_fx(model.eval(), get_default_qconfig_mapping(_engine()), (images,))
    with torch.no_grad():
        for _ in range(8):
            prepared(next(source).images)
    return quantize_fx.convert_fx(prepared)


def _quantization_aware(model: nn.Module, source: Iterator[Batch]) -> nn.Module:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, quantize_fx

    images = next(source).images
    prepared = quantize_fx.prepare_qat_fx(model.train(), get_default_qat_qconfig_mapping(_engine()), (images,))
    pretrain(prepared, source, 20)
    return quantize_fx.convert_fx(prepared.eval())


def _engine() -> str:
    """Return this torch's int8 back end for x86 servers, and activate it."""
    engine = next(name for name in ("x86", "fbgemm", "qnnpack") if name in torch.backends.quantized.supported_engines)
    torch.backends.quantized.engine = engine
    return engine


def _torchao(model: nn.Module, source: Iterator[Batch]) -> nn.Module:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    del source
    quantize_(model.eval(), Int8DynamicActivationInt8WeightConfig())
    return model


_QUANTIZERS = {"dynamic": _dynamic, "static": _static, "qat": _quantization_aware, "torchao": _torchao}
