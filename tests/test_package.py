"""What is released: the wheel holds the package and nothing else, and runs the README's example with the core alone."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from proxsvm import __version__

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE")
FILES = ("pyproject.toml", "MANIFEST.in", *PAGES)
EXTRAS = ("cvxpy", "lightning", "maxflow", "numba", "scipy", "sklearn")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with wheel and sdist, made from a copy without internet."""
    if find_spec("build") is None:
        pytest.skip("the extra 'dev' is not installed")
    folder = tmp_path_factory.mktemp("project")
    for name in ("proxsvm", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "build", "--no-isolation"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder / "dist"


def modules() -> set[str]:
    files = {path for path in (ROOT / "proxsvm").rglob("*") if path.suffix in (".py", ".typed")}
    return {str(path.relative_to(ROOT)) for path in files}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    info = f"proxsvm-{__version__}.dist-info/"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(info)}
    assert "proxsvm/py.typed" in held
    assert held == modules()


def test_the_sdist_holds_the_package_and_what_describes_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    rest = {name for name in held if not name.startswith("proxsvm.egg-info/")}
    assert rest == modules() | set(FILES) | {"PKG-INFO", "setup.cfg"}


def test_the_first_example_runs_from_the_wheel_with_the_core_alone(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    alone = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"  # None: the import fails
    where = "\nimport proxsvm; print(proxsvm.__file__)"
    command = [sys.executable, "-W", "error", "-c", alone + example + where]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == str(tmp_path / "proxsvm" / "__init__.py")


def test_changelog_and_citation_are_of_this_version():
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
