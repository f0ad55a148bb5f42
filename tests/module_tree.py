"""A tree of environment modules with one module, which provides a Python."""

import sys
from pathlib import Path

from tests.engines.conftest import demand

#: Debian can have only one of the two installed.
HOMES = {"lmod": Path("/usr/share/lmod/lmod"), "environment-modules": Path("/usr/share/modules")}
TCL = """#%Module1.0
prepend-path PATH {bin}
prepend-path PYTHONPATH {lib}
setenv STACK_SPEED 20
setenv STACK_SAYS "a 'b' $"
"""


def module_tree(folder: Path) -> tuple[Path, dict[str, Path]]:
    """Create ``folder``/tree with Stack/2.0; return the home of `module` and the folders that the module adds."""
    home = next((home for home in HOMES.values() if (home / "init" / "bash").exists()), None)
    demand(None if home else f"none of {', '.join(HOMES)} is installed")
    assert home
    places = {"bin": folder / "stack" / "bin", "lib": folder / "stack" / "lib"}
    for made in (*places.values(), folder / "tree" / "Stack"):
        made.mkdir(parents=True)
    for name in ("python", "python3"):
        (places["bin"] / name).symlink_to(sys.executable)
    (places["lib"] / "beside.py").write_text("")
    (folder / "tree" / "Stack" / "2.0").write_text(TCL.format(**places))
    return home, places
