"""Formulas as C kernels: the bits are NumPy's, kernels take over when compiled, no other user's are loaded."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.expression import swept
from opbox_ops.expression.c_source import c_source
from opbox_ops.expression.evaluate import FormulaKernel
from opbox_ops.expression.language import Expression
from opbox_ops.expression.pointwise import Pointwise, program_of
from opbox_protocol.mxnet import numpy_dtype
from tests.machine import needs_compiler, needs_onednn
from tests.switches import set_c_kernels

CPU = backend_for("cpu")
BFLOAT16 = numpy_dtype("bfloat16")
NAMES = ("a", "b", "c")
PARAMETERS = {"p": 0.3, "q": -1.7}


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))


def kernel_of(formulas: Pointwise, arrays: list[Any], outs: list[Any]) -> FormulaKernel:
    wanted = tuple(range(len(outs)))
    program, work = program_of(formulas, [a.dtype for a in arrays], [out.dtype for out in outs], wanted)
    return FormulaKernel(program, work, CPU.xp, CPU.special)


def values(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Numbers of all kinds, NaN, infinities and both zeros among them."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iub":
        return np.asarray(rng.integers(0, 3, shape), dtype)
    array = np.asarray(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape), dtype)
    flat = array.reshape(-1)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], dtype)
    places = rng.permutation(flat.size)[: flat.size // 4]
    flat[places] = rng.choice(special, places.size)
    return array


FORMULAS = [
    "maximum(a * b + c, 0)",
    "minimum(a, b) - maximum(b, c)",
    "g * (1 - square(a))".replace("g", "b"),
    "1 / (1 + exp(-a)) * c + tanh(b)",
    "where(a > b, c * p, log(abs(c)) + q)",
    "where(logical_and(a > 0, b != c), a, -b)",
    "a - p * b / (sqrt(c) + 1e-8)",
    "power(abs(a), p) + sign(b) * (c == 0)",
    "modulo(a, b) + floor(c) * trunc(a)",
    "exp(exp(-abs(a)) * b) + log1p(abs(c))",
    "logical_xor(a, b) + logical_not(c) + (a <= b) * 2",
]
SINGLE = ["tanh(a)", "exp(b)", "a * c"]
"""One step each: by a kernel where threads share it, and by NumPy's loop in one thread."""
TYPES: list[tuple[Any, ...]] = [
    *(("f4", "f4", "f4"), ("f8", "f8", "f8"), ("f4", "f2", "f4"), ("f4", "i4", "?"), ("f8", "f4", "f2")),
    *(("f2", "f2", "f2"), ("f2", "f4", "i4"), (BFLOAT16,) * 3, ("f4", BFLOAT16, "f2"), ("f8", BFLOAT16, "f2")),
]
SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((37, 53),) * 4,
    ((5000,),) * 4,
    ((4, 6, 40), (4, 6, 40), (6, 1), (4, 6, 40)),
    ((3, 70), (70,), (1,), (3, 70)),
    ((), (), (), ()),
]


@needs_compiler
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(np.dtype(dtype).name for dtype in types))
@pytest.mark.parametrize("text", FORMULAS)
def test_a_kernel_gives_numpys_bits(text: str, types: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    formulas = Pointwise(NAMES, (Expression(text, NAMES, tuple(PARAMETERS)),)).with_numbers(PARAMETERS)
    for shapes in SHAPES if types is TYPES[0] else SHAPES[:1]:
        arrays = [values(shape, dtype, 7 * k) for k, (shape, dtype) in enumerate(zip(shapes, types, strict=False))]
        results = []
        for mode in ("0", "now"):
            set_c_kernels(monkeypatch, mode)
            out = np.full(shapes[3], 7, types[0])
            kernel = kernel_of(formulas, arrays, [out])
            with np.errstate(all="ignore"):
                kernel.bind(out.shape, arrays, [out], PARAMETERS)()
            results.append(out)
        assert kernel.sweeps is not None
        assert [s.bound is not None for s in kernel.sweeps._sweeps.values()] == [True], "no kernel was made"
        wide = [result.astype("f8") for result in results]  # NumPy takes no NaN of bfloat16 for equal to another
        np.testing.assert_array_equal(*wide)
        real = ~np.isnan(wide[0])
        assert results[0][real].tobytes() == results[1][real].tobytes(), (text, types, shapes)


@needs_compiler
def test_targets_may_be_the_memory_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an update: the state and the weight are written where they are read, after a loop of NumPy's too."""
    texts = ("p * a + exp(b)", "c - (p * a + exp(b)) * a")
    formulas = Pointwise(NAMES, tuple(Expression(text, NAMES, ("p",)) for text in texts), anywhere=True)
    results = []
    for mode in ("0", "now"):
        set_c_kernels(monkeypatch, mode)
        a, b, c = (values((3000,), "f4", k) for k in range(3))
        over = (frozenset((0,)), frozenset((2,)))
        program, work = program_of(formulas, [a.dtype] * 3, [a.dtype] * 2, (0, 1), over)
        with np.errstate(all="ignore"):
            FormulaKernel(program, work, np, CPU.special).bind(a.shape, [a, b, c], [a, c], {"p": 0.9})()
        results.append((a, c))
    for by_numpy, by_kernel in zip(*results, strict=True):
        np.testing.assert_array_equal(by_numpy, by_kernel)


PARTS = 3
"""In as many parts threads are tested: each compiles kernels for a third of the formulas, and has one of `SINGLE`."""
THREADS_SCRIPT = """
import sys
import numpy as np
from opbox_ops.expression import c_source, swept
from tests.ops.test_swept import FORMULAS, SINGLE, NAMES, PARAMETERS, PARTS, SHAPES, kernel_of, values
from opbox_ops.expression.language import Expression
from opbox_ops.expression.pointwise import Pointwise

c_source.THREADED = swept.THREADED = 1
singles = 0
for text in (*FORMULAS, *SINGLE)[int(sys.argv[2])::PARTS]:
    formulas = Pointwise(NAMES, (Expression(text, NAMES, tuple(PARAMETERS)),)).with_numbers(PARAMETERS)
    for shapes in (*SHAPES, ((2, 33),) * 4, ((65,),) * 4, ((2, 1, 3, 40), (3, 40), (2, 5, 1, 1), (2, 5, 3, 40))):
        arrays = [values(shape, sys.argv[1], 7 * k) for k, shape in enumerate(shapes[:3])]
        out = np.full(shapes[3], 7, sys.argv[1])
        kernel = kernel_of(formulas, arrays, [out])
        with np.errstate(all="ignore"):
            kernel.bind(out.shape, arrays, [out], PARAMETERS)()
        sys.stdout.write(out.tobytes().hex() + "\\n")
        singles += text in SINGLE and any(sweep.bound is not None for sweep in kernel.sweeps._sweeps.values())
sys.stderr.write(f"{singles} by kernels")
"""


@needs_compiler
@needs_onednn
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_threads_give_the_bits_of_one(folder: Path, dtype: str, part: int) -> None:
    """With one thread, with two, with more than there are rows, and by NumPy; libgomp reads the number at its start.

    Of float16 a single step is a kernel's in one thread too.
    """
    results = []
    for mode, threads in (("0", 1), ("now", 1), ("now", 2), ("now", 7)):
        kernels = {"OPBOX_DISABLE": "c-kernels"} if mode == "0" else {"OPBOX_C_KERNELS": mode}
        settings = {**kernels, "OMP_NUM_THREADS": str(threads), "OPBOX_CACHE_DIR": str(folder)}
        command = [sys.executable, "-c", THREADS_SCRIPT, dtype, str(part)]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            command, env={**os.environ, **settings}, cwd=root, capture_output=True, text=True, check=True
        )
        assert done.stderr.startswith("0 by") == (mode == "0" or (threads == 1 and dtype == "f4")), done.stderr
        results.append([np.frombuffer(bytes.fromhex(line), dtype) for line in done.stdout.split()])
    for of_one, *others in zip(*results, strict=True):
        real = ~np.isnan(of_one)
        for other in others:
            np.testing.assert_array_equal(np.isnan(other), ~real)
            assert other[real].tobytes() == of_one[real].tobytes()


def example() -> tuple[FormulaKernel, list[Any], Any]:
    arrays = [np.linspace(-2, 2, 100).astype("f4") + k for k in range(3)]
    out = np.zeros(100, "f4")
    return kernel_of(Pointwise(NAMES, (Expression("a * b + c", NAMES),)), arrays, [out]), arrays, out


def by_kernel(call: Any) -> bool:
    """Whether a call that switches has come to its kernel."""
    return isinstance(inspect.getclosurevars(call).nonlocals["settled"], partial)


@needs_compiler
def test_numpy_runs_until_the_kernel_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    set_c_kernels(monkeypatch, "1")
    monkeypatch.setattr(c_compiler, "request", asked.append)
    kernel, arrays, out = example()
    call: Any = kernel.bind(out.shape, arrays, [out], {})
    expected = arrays[0] * arrays[1] + arrays[2]
    call()
    np.testing.assert_array_equal(out, expected)
    assert not asked, "one short run pays for no compiler"
    assert kernel.sweeps is not None
    kernel.sweeps.heat = swept.HOT
    for _ in range(2):
        out[...] = 0
        call()
        np.testing.assert_array_equal(out, expected)
    assert len(asked) == 1
    asked[0]()
    out[...] = 0
    arrays[0][...] = 3
    call()
    np.testing.assert_array_equal(out, 3 * arrays[1] + arrays[2])
    assert by_kernel(call), "NumPy still runs"


@needs_compiler
def test_the_background_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    set_c_kernels(monkeypatch, "1")
    kernel, arrays, out = example()
    call: Any = kernel.bind(out.shape, arrays, [out], {})
    assert kernel.sweeps is not None
    kernel.sweeps.heat = swept.HOT
    end = time.monotonic() + 60
    while not by_kernel(call) and time.monotonic() < end:
        call()
        time.sleep(0.01)
    np.testing.assert_array_equal(out, arrays[0] * arrays[1] + arrays[2])
    assert by_kernel(call)


@pytest.mark.broken_kernel
@pytest.mark.parametrize("case", ["switched off", "no compiler", "it fails", "it takes too long", "no folder"])
def test_without_a_kernel_numpy_runs(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\n" + ("sleep 60\n" if case == "it takes too long" else "exit 1\n"))
    program.chmod(0o700)
    set_c_kernels(monkeypatch, "0" if case == "switched off" else "now")
    monkeypatch.setenv("OPBOX_CACHE_DIR", "not/absolute" if case == "no folder" else str(tmp_path / "cache"))
    if case != "no folder":
        compiler = None if case == "no compiler" else (str(program), "")
        monkeypatch.setattr(c_compiler, "_compiler", lambda: compiler)
    monkeypatch.setattr(c_compiler, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(c_compiler, "_function", c_compiler._function.__wrapped__)
    kernel, arrays, out = example()
    kernel.bind(out.shape, arrays, [out], {})()
    np.testing.assert_array_equal(out, arrays[0] * arrays[1] + arrays[2])
    assert kernel.sweeps is not None
    assert not any(s.bound for s in kernel.sweeps._sweeps.values())


TEXT = "int answer(void) { return 42; }"


def answer(text: str = TEXT) -> int | None:
    """What the function gives, from the folder or compiled; None where there is none."""
    try:
        function = c_compiler._function.__wrapped__(text, "answer")
    except OSError:
        return None
    return None if function is None else function()


@needs_compiler
def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    assert answer() == 42
    folder = tmp_path / "cache" / "kernels"
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(c_compiler, "_compile", lambda *arguments: pytest.fail("compiled again"))
    assert answer() == 42


@needs_compiler
@pytest.mark.parametrize("how", ["others write to it", "another's", "a link"])
def test_a_folder_that_others_could_fill_is_not_used(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    assert answer() == 42
    folder = tmp_path / "cache" / "kernels"
    if how == "others write to it":
        folder.chmod(0o770)
    elif how == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert c_compiler.cache_folder() is None
    assert answer() is None


def test_a_link_in_the_temporary_folder_leads_to_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Anybody can put one there. Nothing is made where it leads to."""
    (tmp_path / "not a folder").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"opbox-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.delenv("OPBOX_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not a folder"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert c_compiler.cache_folder() is None
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / f"opbox-{os.geteuid()}").unlink()
    assert c_compiler.cache_folder() == tmp_path / f"opbox-{os.geteuid()}" / "kernels"


@needs_compiler
def test_a_file_that_another_could_have_written_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    assert answer() == 42
    (file,) = (tmp_path / "cache" / "kernels").iterdir()
    evil = tmp_path / "evil.so"
    shutil.copy(file, evil)
    file.unlink()
    file.symlink_to(evil)
    assert answer() == 42
    assert not file.is_symlink()
    file.chmod(0o622)
    assert answer() == 42
    assert file.stat().st_mode & 0o777 == 0o600


@needs_compiler
@pytest.mark.broken_kernel
def test_a_file_cut_short_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    folder, compiler = c_compiler.cache_folder(), c_compiler._compiler()
    assert folder is not None
    assert compiler is not None
    path = c_compiler._path(folder, compiler, TEXT)
    path.touch(0o600)
    path.write_bytes(b"ELF")
    assert answer() == 42
    assert path.stat().st_size > 3


@needs_compiler
@pytest.mark.broken_kernel
def test_what_a_compiler_has_cut_short_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    folder = c_compiler.cache_folder()
    assert folder is not None
    monkeypatch.setattr(
        c_compiler, "_compile", lambda compiler, text, path: path.touch(0o600) or path.write_bytes(b"ELF")
    )
    assert answer() is None
    assert not list(folder.iterdir()), "it would be loaded again and again"


@needs_compiler
def test_what_a_process_left_amid_compiling_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path / "cache"))
    folder = c_compiler.cache_folder()
    assert folder is not None
    old, new = folder / "making-old", folder / "making-new"
    for place in (old, new):
        place.mkdir()
        (place / "kernel.so").touch()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    assert answer() == 42
    assert not old.exists()
    assert new.exists()


SWEEP = "for (long j = 0; j < m; ++j) {"


@needs_compiler
@pytest.mark.parametrize("text", [*FORMULAS, "minimum(maximum(a, -1), 1) * b", "a * (erf(b) + tanh(c))"])
def test_every_sweep_becomes_vectors(text: str, tmp_path: Path) -> None:
    """A length that a loop has the address of, or a choice that the compiler makes a branch, would prevent it."""
    terms = Pointwise(NAMES, (Expression(text, NAMES, tuple(PARAMETERS)),))
    program, work = program_of(terms, [np.dtype(np.float32)] * 3, [np.dtype(np.float32)], (0,))
    source = c_source(program, work, [np.dtype(np.float32)] * 4, [False] * 3)
    assert source is not None
    path = tmp_path / "formula.c"
    path.write_text(source.text)
    options = [option for option in c_compiler.OPTIONS if option not in ("-w", "-shared")]
    command = ["gcc", *options, "-fopt-info-vec", "-c", str(path), "-o", str(tmp_path / "formula.o")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    vectors = {int(line.split(":")[1]) for line in report.splitlines() if "loop vectorized" in line}
    sweeps = {number for number, line in enumerate(source.text.splitlines(), 1) if SWEEP in line}
    assert sweeps
    assert sweeps <= vectors
