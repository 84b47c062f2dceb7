"""C++ compiled into libraries that emulate kernels, kept on disk by content; and the user's line of their code."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from opbox_protocol.errors import BadRequestError, FileError, UnsupportedError
from opbox_protocol.own_folders import home, make_own

from ..compiler_process import run_compiler
from .translate import for_emulator, kernel_names

__all__ = ["Build", "line_of"]

_HEADERS = ("device.hpp", "math.hpp", "vectors.hpp", "atomics.hpp", "half.hpp")
_RUNTIME = ("checks.hpp", "fibers.hpp", "waiting.hpp", "runtime.hpp")
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE",
)
# Every access calls the runtime first, and so do wrong indexes of arrays of known length, alignments and divisors.
_CHECKED = ("-fsanitize=kernel-address", "-fsanitize=bounds,alignment,integer-divide-by-zero", "-gdwarf-4", "-g")
_CALLS = {
    "gcc": [
        *("--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0", "--param=asan-globals=1"),
        *("-fno-threadsafe-statics", "-fno-gnu-unique"),
    ],
    "clang": [
        *("-mllvm", "-asan-instrumentation-with-call-threshold=0", "-mllvm", "-asan-stack=0"),
        *("-mllvm", "-asan-globals=1", "-fno-threadsafe-statics", "-fvisibility-global-new-delete-hidden"),
        # It takes code that reads a null pointer, or counts past a type's end, for code that is never reached.
        *("-fsanitize=null", "-fno-strict-overflow", "-fno-delete-null-pointer-checks"),
    ],
}
_SYMBOLIZERS = ("addr2line", "llvm-addr2line")
COMPILE_SECONDS = 60
_USERS = re.compile(r"\w+\.cu:\d+:")
_AT_LINE = re.compile(r"(?:^|/)(?!launch\b)\w+\.cu:(\d+)")


class Build:
    """The library of a source: all its kernels together, so that they share its `__device__` variables.

    Args:
        source: CUDA C++.
        definitions: lines of source that stand before it.
        exports: instances of templates among the kernels.
        cache: a private folder for what is compiled.
    """

    def __init__(self, source: str, definitions: str, exports: Sequence[str], cache: Path | None) -> None:
        self._source = source
        self._definitions = definitions
        self._exports = tuple(exports)
        self._cache = cache

    def library(self, name: str) -> tuple[Path, int]:
        """Return the compiled library, and the number of the kernel `name` in it.

        Raises:
            BadRequestError: the source does not compile, or has no such kernel.
            UnsupportedError: there is no C++ compiler on this machine.
        """
        # What the text seems to define may be switched off by its #if: then what is asked for is compiled alone.
        every = list(dict.fromkeys([*sorted({*kernel_names(self._source), *self._exports}), name]))
        built = None
        for names in (every, [name]):
            built = self._compiled(name, names)
            if built is not None and "__global__" in self._definitions + self._source:
                return built, names.index(name)
        if built is not None:
            raise BadRequestError(f"kernel {name!r}: expected a kernel, got a function without __global__ before it")
        known = f": expected one of {', '.join(every[:-1])}" if len(every) > 1 else ""
        raise BadRequestError(f"kernel {name!r}: the source has no kernel of this name, or several{known}")

    def _compiled(self, name: str, names: list[str]) -> Path | None:
        """Compile the library; None where the source compiles but one of the names is no kernel in it."""
        compiler = _compiler(name)
        folder = self._cache or _default_cache()
        text = self._program(names)
        target = folder / f"{_digest(text + _runtime_text(), compiler)}.so"
        if target.exists():
            return target
        runtime = _runtime(name, compiler, folder)
        with tempfile.TemporaryDirectory(dir=folder) as build:
            program, compiled, linked = Path(build, "kernel.cpp"), Path(build, "kernel.o"), Path(build, "kernel.so")
            program.write_text(text, encoding="utf-8")
            errors = _run(
                name, build, compiler, "-O1", *_CHECKED, *_calls(compiler), "-c", str(program), "-o", str(compiled)
            )
            if errors is not None:
                log = "\n".join(line for line in errors.splitlines() if _USERS.match(line))
                if " error: " not in log and re.search(r"^launch:\d+:", errors, re.M):
                    return None
                raise BadRequestError(f"kernel {name!r} does not compile: {_first_error(log)}", detail={"log": log})
            errors = _run(
                name, build, compiler, "-shared", "-Wl,-z,defs", str(compiled), str(runtime), "-o", str(linked)
            )
            if errors is not None:
                missing = ", ".join(
                    sorted(set(re.findall(r"undefined (?:reference to|symbol:?) [`']?([^`'\n]+)", errors)))
                )
                raise BadRequestError(
                    f"kernel {name!r} does not compile: {missing or 'a function'} is declared and not defined"
                )
            os.replace(linked, target)
        return target

    def _program(self, names: list[str]) -> str:
        entries = "".join(
            f'extern "C" __attribute__((visibility("default"))) int opbox_parameters_{number}(int *kinds) '
            f"{{ return opbox::parameters(&{name}, kinds); }}\n"
            f"OPBOX_OWN static void opbox_call_{number}(void **args) {{ opbox::call(&{name}, args); }}\n"
            f"OPBOX_LAUNCH({number})\n"
            for number, name in enumerate(names)
        )
        headers = "".join(f'#line 1 "{header}"\n{_text(header)}\n' for header in _HEADERS)
        # After the headers, which must not see the user's names.
        program = f'{self._definitions}#line 1 "kernel.cu"\n{for_emulator(self._source)}'
        return f'{headers}{program}\n#line 1 "launch"\n{entries}'


def line_of(library: Path, code: int) -> int:
    """The user's line that the call before the address `code` stands for; 0 where it is not known."""
    tool = next((path for path in map(shutil.which, _SYMBOLIZERS) if path), None)
    if tool is None:
        return 0
    command = [tool, "-i", "-e", str(library), hex(code - 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    places = filter(None, map(_AT_LINE.search, done.stdout.splitlines()))
    place = next(places, None)
    return int(place[1]) if place else 0


def _compiler(kernel: str) -> str:
    compiler = next((path for path in map(shutil.which, _COMPILERS) if path), None)
    if compiler is None:
        raise UnsupportedError(
            f"kernel {kernel!r}: this CPU server runs CUDA source through a C++ compiler and found none of "
            f"{', '.join(_COMPILERS)}: install one (on Debian: apt-get install g++)"
        )
    return compiler


@cache
def _calls(compiler: str) -> list[str]:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return _CALLS["clang" if "clang" in version else "gcc"]


def _runtime(kernel: str, compiler: str, folder: Path) -> Path:
    """The object that every library has: checks and fibers."""
    text = _runtime_text()
    target = folder / f"{_digest(text, compiler)}.o"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as build:
            program, compiled = Path(build, "runtime.cpp"), Path(build, "runtime.o")
            program.write_text(text, encoding="utf-8")
            errors = _run(kernel, build, compiler, "-O2", "-c", str(program), "-o", str(compiled))
            if errors is not None:
                raise UnsupportedError(f"kernel {kernel!r}: the C++ compiler of this server cannot build the emulator")
            os.replace(compiled, target)
    return target


def _run(kernel: str, folder: str, compiler: str, *arguments: str) -> str | None:
    """Run the compiler in a folder; return its error message where it fails, None otherwise."""
    command = [compiler, *_FLAGS, *arguments]
    try:
        done = run_compiler(command, folder=folder, seconds=COMPILE_SECONDS, environment={"LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        raise BadRequestError(f"kernel {kernel!r}: compiling took longer than {COMPILE_SECONDS} s") from None
    return done.stderr.decode(errors="replace") if done.returncode else None


def _runtime_text() -> str:
    return "".join(f'#line 1 "{file}"\n{_text(file)}\n' for file in _RUNTIME)


@cache
def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(text: str, compiler: str) -> str:
    return hashlib.sha256("\0".join([text, *_FLAGS, *_CHECKED, *_calls(compiler), compiler]).encode()).hexdigest()


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if " error: " in line), lines[0] if lines else "the compiler gave no message")


@cache
def _default_cache() -> Path:
    """A folder of this user's own; one for this process alone where the user has no home to write to."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
        folder = base.absolute() / "opbox" / "kernels"
        make_own(folder)
    except FileError:
        temporary = tempfile.TemporaryDirectory(prefix="opbox-kernels-")
        atexit.register(temporary.cleanup)
        return Path(temporary.name)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise UnsupportedError("the kernel cache belongs to somebody else or is writable by others: remove it")
    return folder
