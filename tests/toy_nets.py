"""A third-party package with models (docs/workloads.md), laid out as an installer does."""

_MODULE = '''
import subprocess, sys
from torch import nn

HUNGRY = """
open("/proc/self/oom_score_adj", "w").write("1000")
held = []
while True: held.append(bytearray(2**20))
"""

def small(options, shape, classes):
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes, bias=options["bias"]))

def nothing(options, shape, classes):
    return None

def hungry(options, shape, classes):
    raise RuntimeError(f"worker is killed by signal: {-subprocess.call([sys.executable, '-c', HUNGRY])}")
'''


def lay_out_toy(folder):
    """Write the package ``toy_nets`` with the entry point ``toy-small`` into a folder of ``sys.path``."""
    (folder / "toy_nets.py").write_text(_MODULE)
    installed = folder / "toy_nets-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-nets\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[envmatrix.models]\ntoy-small = toy_nets:small\n")
