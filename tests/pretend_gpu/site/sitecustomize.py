"""On PYTHONPATH, lets this process and its children find the pretend GPU when they first import CuPy."""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class _Cupy:
    """Finds CuPy where it is, and puts the pretend devices in place around its import."""

    def find_spec(self, name, path=None, target=None):
        if name != "cupy":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            sys.meta_path.remove(self)
            run = spec.loader.exec_module

            def exec_module(module):
                install = _package("install")
                install.below()
                run(module)
                install.above(module)

            spec.loader.exec_module = exec_module
        return spec


def _package(module):
    """A module of tests/pretend_gpu, under a name of its own: the tests' folder is on no path here."""
    folder = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location(
        "pretend_gpu", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules["pretend_gpu"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module(f"pretend_gpu.{module}")


# A self-check would compile every kernel by g++; the tests of the check ask for it.
os.environ.setdefault("OPBOX_GPU_SELFCHECK_S", "0")
sys.meta_path.insert(0, _Cupy())
