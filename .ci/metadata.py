"""Write the distributions' versions and entry points into FOLDER, for a machine that runs them from their sources.

python .ci/metadata.py FOLDER
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("protocol", "ops", "client", "service")


def write(project: dict, folder: Path) -> None:
    """Write the dist-info folder of one `[project]` table."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    for part in PARTS:
        write(tomllib.loads((ROOT / part / "pyproject.toml").read_text())["project"], Path(sys.argv[1]))
