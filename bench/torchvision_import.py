"""Import of torchvision, even if its compiled operators do not match this torch."""

from __future__ import annotations

import sys
from typing import Any


def torchvision() -> Any:
    """Import torchvision and return it.

    A wheel made for another build of this torch cannot load its operators, and its import fails with "operator
    torchvision::nms does not exist". If declared here, they only fail when a detection model runs.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declare_operators()
        import torchvision
    import torchvision.models
    import torchvision.transforms

    return torchvision


def _declare_operators() -> None:
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    # Kept in a module attribute: a Library's operators are removed when it is garbage collected.
    global _library  # noqa: PLW0603
    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_library = None
