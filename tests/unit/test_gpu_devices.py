"""GPUs of AMD and Intel: how containers get them, and what PyTorch reports of its build. Nothing here ran on one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from bench import devices
from bench.evidence import pytorch
from envmatrix.engines import gpu_devices
from envmatrix.engines.apptainer_command import exec_argv
from envmatrix.engines.base import Job, Limits, Mounts, Prepared
from envmatrix.engines.docker import container_config
from envmatrix.engines.gpu_devices import AMD, INTEL, NVIDIA, device_groups, gpu_maker_of_image
from envmatrix.system.host import has_any_gpu


def job(torch: str, *gpus: str) -> Job:
    """Return a job in an image with a build of torch."""
    prepared = Prepared("i", "docker", "image:1", "/py", {}, facts={"package torch": torch})
    return Job("run", "t", prepared, ("/py",), {}, (), Mounts(Path("/w"), {}), Limits(9.0, gpus=gpus), None)


def machine(root: Path, maker: str) -> Path:
    """Lay out the device files that a machine with a GPU has."""
    (root / "dev").mkdir()
    if maker == NVIDIA:
        (root / "dev/nvidia0").touch()
    if maker == AMD:
        (root / "dev/kfd").touch()
    vendor = {NVIDIA: "0x10de", AMD: "0x1002", INTEL: "0x8086"}[maker]
    device = root / "sys/class/drm/renderD128/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    return root


@pytest.mark.parametrize("maker", [NVIDIA, AMD, INTEL])
def test_an_image_with_another_torch_uses_the_gpus_that_the_machine_has(tmp_path, maker):
    assert gpu_maker_of_image({}, machine(tmp_path, maker)) == maker
    assert has_any_gpu(tmp_path)


@pytest.mark.parametrize(("torch", "maker"), [("2.10.0+rocm7.1", AMD), ("2.10.0+xpu", INTEL), ("2.10.0+cu128", NVIDIA)])
def test_a_build_of_torch_is_for_the_gpus_of_one_maker_whatever_this_machine_has(tmp_path, torch, maker):
    for other in (NVIDIA, AMD, INTEL):
        (tmp_path / other).mkdir()
        assert gpu_maker_of_image({"package torch": torch}, machine(tmp_path / other, other)) == maker


def test_a_machine_without_a_gpu_is_asked_for_nvidias_as_before(tmp_path):
    assert gpu_maker_of_image({"package torch": "2.13.0"}, tmp_path) == NVIDIA
    assert not has_any_gpu(tmp_path)


@pytest.mark.parametrize(
    ("torch", "paths", "variable"),
    [
        ("2.10.0+rocm7.1", ["/dev/kfd", "/dev/dri"], "HIP_VISIBLE_DEVICES=0,1"),
        ("2.10.0+xpu", ["/dev/dri"], "ZE_AFFINITY_MASK=0,1"),
    ],
)
def test_docker_gives_the_device_files_with_their_groups_and_a_variable_chooses(monkeypatch, torch, paths, variable):
    monkeypatch.setattr(gpu_devices, "device_groups", lambda maker: ["44", "110"])
    config = container_config(job(torch, "0", "1"), "1:1", Path("/cache"))
    host = config["HostConfig"]
    assert [device["PathOnHost"] for device in host["Devices"]] == paths
    assert all(device["PathInContainer"] == device["PathOnHost"] for device in host["Devices"])
    assert host["GroupAdd"] == ["44", "110"]
    assert "DeviceRequests" not in host
    assert config["Env"] == [variable]
    assert container_config(job(torch, "all"), "1:1", Path("/cache"))["Env"] == []
    assert "Devices" not in container_config(job(torch), "1:1", Path("/cache"))["HostConfig"]


def test_the_groups_are_those_that_own_the_device_files_here(tmp_path):
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128", "dri/card0"):
        (tmp_path / "dev" / name).touch()
    group = (tmp_path / "dev/kfd").stat().st_gid
    assert device_groups(AMD, tmp_path) == [str(group)]
    assert device_groups(NVIDIA, tmp_path) == []


@pytest.mark.parametrize(
    ("torch", "added"),
    [
        ("2.10.0+rocm7.1", ["--rocm", "LD_LIBRARY_PATH=/.singularity.d/libs", "HIP_VISIBLE_DEVICES=1"]),
        ("2.10.0+xpu", ["/dev/dri", "ZE_AFFINITY_MASK=1"]),
    ],
)
def test_apptainer_has_an_option_for_amd_and_mounts_intels_device_files(torch, added):
    argv, plain = (exec_argv(job(torch, *gpus), "apptainer", ()) for gpus in (("1",), ()))
    assert [word for word in argv if word not in plain] == added


def test_a_build_for_rocm_or_xpu_says_its_version_and_one_for_cpus_says_none():
    torch = MagicMock(__file__="/t/__init__.py", version=SimpleNamespace(cuda=None, hip="7.1.52802", xpu=None))
    torch.__version__, torch.__config__ = "2.10.0", MagicMock()
    said = pytorch.collect(torch)
    assert (said["hip"], said["xpu"], said["xpu_devices"]) == ("7.1.52802", None, None)
    torch.version = SimpleNamespace(cuda=None, hip=None, xpu="20250302")
    torch.xpu = SimpleNamespace(device_count=lambda: 2, get_device_name=lambda number: f"Max 1550 {number}")
    said = pytorch.collect(torch)
    assert (said["hip"], said["xpu"], said["xpu_devices"]) == (None, "20250302", ["Max 1550 0", "Max 1550 1"])


def test_a_rocm_build_is_one_for_torchs_cuda_device():
    cuda = SimpleNamespace(is_available=lambda: True)
    version = SimpleNamespace(cuda=None, hip="7.1")
    assert devices.why_no_cuda(SimpleNamespace(__version__="2.10.0+rocm7.1", version=version, cuda=cuda)) is None
    version.hip = None
    assert "built without CUDA" in devices.why_no_cuda(SimpleNamespace(__version__="2.10.0+cpu", version=version))
