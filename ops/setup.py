"""Builds the kernels in C with the distribution, where GCC is there; all else stands in pyproject.toml.

An installation in place (`pip install -e`) builds none: there kernels are compiled when they are asked for. Without GCC
the distribution has no library, and oneDNN and NumPy compute.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


def runtime() -> Any:
    """Return the module that builds kernels, without `opbox_ops` around it, whose dependencies a build has not."""
    folder = HERE / "opbox_ops" / "cpu" / "runtime"
    spec = importlib.util.spec_from_file_location(
        "opbox_kernels", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    return importlib.import_module("opbox_kernels.kernel_build")


kernel_build = runtime()
COMPILER = kernel_build.build_compiler()


class BuildWithKernels(build_py):
    """Copies the sources, then builds the libraries beside them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        if COMPILER is None:
            self.warn("no GCC for Linux on x86-64: the distribution has no kernels in C, oneDNN and NumPy compute")
            return
        folder = Path(self.build_lib) / "opbox_ops" / "cpu" / "built"
        for name, words in kernel_build.build(COMPILER, folder).items():
            self.warn(f"no kernels for {name}: {words}")


class DistributionWithKernels(Distribution):
    """A distribution for this platform, where it has libraries."""

    def has_ext_modules(self) -> bool:
        return COMPILER is not None


class WheelOfAnyPython(bdist_wheel):
    """A wheel whose libraries know nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=DistributionWithKernels, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelOfAnyPython})
