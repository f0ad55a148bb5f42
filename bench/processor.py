"""Facts of /proc/cpuinfo: x86 kernels write the name of the processor, Arm's write numbers of a maker and its part."""

from __future__ import annotations

#: Maker of an Arm processor and its part, as in util-linux (sys-utils/lscpu-arm.c).
_MAKERS = {
    "0x41": "Arm",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0x6d": "Microsoft",
    "0xc0": "Ampere",
}
_PARTS = {
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "TaiShan-v110",
    ("0x61", "0x022"): "M1",
    ("0x61", "0x023"): "M1",
    ("0x61", "0x032"): "M2",
    ("0x61", "0x033"): "M2",
    ("0x6d", "0xd49"): "Azure-Cobalt-100",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
#: By these, the kernels of PyTorch, oneDNN and MKL are chosen (x86, then Arm).
_INSTRUCTION_SETS = """
    sse4_2 avx avx2 fma avx512f avx512bw avx512vl avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile
    amx_bf16 amx_int8 hypervisor asimd sve sve2 bf16 i8mm
"""


def model(cpuinfo: str) -> str | None:
    """Return the processor's name, that of a board if the kernel only knows it, or None."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    fields: dict[str, str] = {}
    for name, separator, value in lines:
        if separator:
            fields.setdefault(name.strip(), value.strip())  # processors of one machine may differ; the first counts
    maker, part = fields.get("CPU implementer"), fields.get("CPU part")
    if fields.get("model name") or maker is None or part is None:
        return fields.get("model name") or fields.get("Model")
    return f"{_MAKERS.get(maker, f'maker {maker}')} {_PARTS.get((maker, part), f'part {part}')}"


def is_virtual(cpuinfo: str, architecture: str) -> bool | None:
    """Return whether the kernel says that it runs on a hypervisor; None on architectures where it never does."""
    return " hypervisor" in cpuinfo if architecture == "x86_64" else None


def instruction_sets(cpuinfo: str) -> list[str] | None:
    """Return the instruction sets by which numerical libraries choose their kernels, None if unknown."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features") and value.strip():
            return sorted(set(_INSTRUCTION_SETS.split()).intersection(value.split()))
    return None
