"""GPUs of NVIDIA, AMD and Intel in containers: device files, their groups, and the variables that choose among GPUs.

AMD: https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html. Intel's need only their render
nodes: https://dgpu-docs.intel.com. Both experimental: they never ran on such a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envmatrix.system.host import has_gpu, has_intel_gpu

NVIDIA, AMD, INTEL = "NVIDIA", "AMD", "Intel"
#: Variables that make only these GPUs visible to a process.
VISIBLE = {NVIDIA: "CUDA_VISIBLE_DEVICES", AMD: "HIP_VISIBLE_DEVICES", INTEL: "ZE_AFFINITY_MASK"}
#: Start of torch's local version (2.10.0+rocm7.1) -> whose GPUs that build is for.
_BUILDS = {"cu": NVIDIA, "rocm": AMD, "xpu": INTEL}
#: Device files that a container needs.
_DEVICES = {AMD: ("/dev/kfd", "/dev/dri"), INTEL: ("/dev/dri",)}


def gpu_maker_of_image(facts: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return whose GPUs an image's torch uses, by its build; otherwise whose GPUs this machine has."""
    build = facts.get("package torch", "").partition("+")[2]
    by_build = next((maker for start, maker in _BUILDS.items() if build.startswith(start)), None)
    if by_build or has_gpu(root):
        return by_build or NVIDIA
    if (root / "dev/kfd").exists():
        return AMD
    return INTEL if has_intel_gpu(root) else NVIDIA


def device_paths(maker: str) -> tuple[str, ...]:
    """Return the device files that a container needs; none for NVIDIA, whose toolkit mounts them."""
    return _DEVICES.get(maker, ())


def device_groups(maker: str, root: Path = Path("/")) -> list[str]:
    """Return the groups that own these device files here (video, render), as numbers: images may lack their names."""
    paths = [root / path.lstrip("/") for path in device_paths(maker)]
    files = [file for path in paths for file in (path.glob("renderD*") if path.is_dir() else [path])]
    return sorted({str(file.stat().st_gid) for file in files if file.exists()}, key=int)


def visible_gpus(maker: str, gpus: tuple[str, ...]) -> dict[str, str]:
    """Return the variable that selects GPUs; {} for all of them."""
    return {} if gpus == ("all",) else {VISIBLE[maker]: ",".join(gpus)}


def gpu_options(maker: str, gpus: tuple[str, ...], engine: str = "docker") -> dict[str, object]:
    """Return the options that give a container GPUs; the variables choose among those of AMD and Intel."""
    if maker == NVIDIA:
        return {"DeviceRequests": [gpu_request(gpus, engine)]}
    devices = [
        {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in device_paths(maker)
    ]
    return {"Devices": devices, "GroupAdd": device_groups(maker)}


def gpu_request(gpus: tuple[str, ...], engine: str = "docker") -> dict[str, object]:
    """Return a DeviceRequest as for ``docker run --gpus``; it needs NVIDIA's container toolkit.

    Podman knows GPUs only by the names of the Container Device Interface.
    """
    if engine == "podman":
        names = [f"nvidia.com/gpu={gpu}" for gpu in gpus]
        return {"Driver": "cdi", "DeviceIDs": names, "Capabilities": [["gpu"]], "Options": {}}
    selection: dict[str, object] = {"Count": -1} if gpus == ("all",) else {"DeviceIDs": list(gpus)}
    return {"Driver": "", **selection, "Capabilities": [["gpu"]], "Options": {}}
