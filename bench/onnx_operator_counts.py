"""Export of the model as an ONNX graph, with counts of its operators."""

from __future__ import annotations

import collections
import io
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from bench.errors import SkipError


def export(model: torch.nn.Module, example: torch.Tensor) -> dict[str, Any]:
    """Return {"bytes", "nodes", "operators": {name: count}} of the exported model.

    Raises SkipError if this torch's exporter needs packages that the environment lacks.
    """
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _export(model.eval(), example, buffer)
    except Exception as error:
        text = str(error)
        if isinstance(error, ImportError) or "not installed" in text:
            raise SkipError(f"onnx: true needs the Python package onnx for this torch ({text})") from error
        raise
    names = operators(buffer.getvalue())
    counts = dict(collections.Counter(names).most_common())
    return {"bytes": buffer.tell(), "nodes": len(names), "operators": counts}


def _export(model: torch.nn.Module, example: torch.Tensor, buffer: io.BytesIO) -> None:
    exporter = torch.onnx.export
    options = {"input_names": ["images"], "output_names": ["scores"]}
    try:
        # The TorchScript exporter: the newer one (torch 2.5) needs onnxscript.
        exporter(model, (example,), buffer, dynamo=False, **options)
    except TypeError:
        exporter(model, (example,), buffer, **options)


def operators(model: bytes) -> list[str]:
    """Return the operator of each node of an ONNX file, read without the onnx package.

    ModelProto.graph is field 7, GraphProto.node 1, NodeProto.op_type 4:
    https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
    """
    names = []
    for graph in _fields(model, 7):
        for node in _fields(graph, 1):
            names += [name.decode() for name in _fields(node, 4)]
    return names


def _fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the length-delimited values of one field (https://protobuf.dev/programming-guides/encoding)."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        wire_type = key & 7
        if wire_type == 0:
            _, offset = _varint(message, offset)
        elif wire_type == 2:
            size, offset = _varint(message, offset)
            if key >> 3 == wanted:
                yield message[offset : offset + size]
            offset += size
        else:
            offset += 8 if wire_type == 1 else 4


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
