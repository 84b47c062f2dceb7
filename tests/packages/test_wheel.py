"""The wheel of opbox-ops brings its kernels compiled: an environment without a compiler computes by them.

`make packages` builds the wheels and runs this. The dependencies are those of the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from opbox_ops.cpu.runtime import processor
from opbox_ops.cpu.runtime.kernel_build import INSTRUCTION_SETS, build_compiler
from tests.machine import has_onednn

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
DEPENDENCIES = next(path for path in map(Path, sys.path) if path.name == "site-packages")

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(build_compiler() is None, reason="no GCC for x86-64: the wheel has no kernels"),
]


def wheels() -> list[Path]:
    return sorted(DIST.glob("opbox*.whl"))


def test_the_wheel_is_for_old_systems_and_has_each_library() -> None:
    (wheel,) = DIST.glob("opbox_ops-*.whl")
    assert "-py3-none-" in wheel.name
    assert "manylinux_2_17_x86_64" in wheel.name
    files = zipfile.ZipFile(wheel).namelist()
    assert {Path(file).name for file in files if file.endswith(".so")} == {one.file for one in INSTRUCTION_SETS}
    assert {file.rpartition("/libgomp/")[2] for file in files if "/libgomp/" in file} - {""} == {
        "libgomp.so.1",
        "LICENSE",
    }
    assert not [file for file in files if ".libs/" in file], "libraries that auditwheel has put in"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has the wheels installed, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    program = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", program, "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, *wheels()], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    return program


# A product, a convolution of 3 x 3 with its gradients, rows, sums by channels. Every function of C is counted.
PROGRAM = """if True:
    import hashlib
    import sys
    from collections import Counter

    import numpy as np
    import opbox as mx
    from opbox_ops.cpu.description import cpu_description
    from opbox_ops.cpu.onednn.library import library
    from opbox_ops.cpu.runtime import c_compiler
    from opbox_ops.cpu.runtime.built_kernels import BuiltKernels, built_kernels

    assert sys.argv[1] in mx.__file__, mx.__file__
    calls = Counter()
    find = BuiltKernels.function

    class Counted:
        def __init__(self, name, function):
            self.__dict__ |= {"name": name, "function": function}

        def __call__(self, *arguments):
            calls[self.name] += 1
            return self.function(*arguments)

        def __setattr__(self, name, value):
            setattr(self.function, name, value)

    def counted(self, text, name):
        function = find(self, text, name)
        return function if function is None or name in LOOPS else Counted(name, function)

    LOOPS = "opbox_exp", "opbox_tanh"  # called by C
    BuiltKernels.function = counted
    rng = np.random.default_rng(0)
    net = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=32, kernel=(3, 3), pad=(1, 1), name="c1")
    net = mx.sym.Convolution(net, num_filter=32, kernel=(3, 3), pad=(1, 1), name="c2")
    net = mx.sym.FullyConnected(net, num_hidden=256, name="fc")
    net = mx.sym.LayerNorm(net, name="norm")
    net = mx.sym.softmax(net)
    executor = net.simple_bind(data=(16, 32, 14, 14))
    for array in executor.arg_dict.values():
        array[:] = rng.normal(size=array.shape).astype("f") * 0.05
    executor.forward(is_train=True)
    executor.backward(mx.nd.array(rng.normal(size=(16, 256))))
    arrays = [executor.outputs[0], *(executor.grad_dict[name] for name in sorted(executor.grad_dict))]
    print(hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in arrays)).hexdigest())
    a, b = rng.normal(size=(64, 128)).astype("f"), rng.normal(size=(256, 128)).astype("f")
    product = mx.nd.FullyConnected(mx.nd.array(a), mx.nd.array(b), num_hidden=256, no_bias=True).asnumpy()
    print(np.abs(product - a.astype("d") @ b.T.astype("d")).max() < 1e-4)
    built = built_kernels()
    print(None if built is None else built.path.name, c_compiler.may_compile(), library() is not None)
    print(cpu_description().line)
    print(*sorted(calls))
"""
COUNTED = {"opbox_product", "opbox_layer_norm", "opbox_layer_norm_gradient", "opbox_softmax", "opbox_softmax_gradient"}


def ran(python: str, folder: Path, **settings: str) -> list[str]:
    """What the program prints by this Python, where `opbox` lies below the folder."""
    environment = {**os.environ, **settings}
    done = subprocess.run(
        [python, "-c", PROGRAM, str(folder)], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not processor.has_vectors(), reason="a processor with neither AVX-512 nor AVX2")
def test_kernels_compute_without_a_compiler(python: str, tmp_path: Path) -> None:
    """And the bits are those of kernels that this machine's compiler makes for this processor."""
    own = ran(sys.executable, ROOT, OPBOX_C_KERNELS="now")
    assert own[2].split()[:2] == ["None", "True"]
    nothing = {"PATH": str(tmp_path), "OPBOX_CACHE_DIR": str(tmp_path / "cache")}
    for setting in ({}, {"OPBOX_ONEDNN": "/nowhere/libdnnl.so.3"}):
        digest, agrees, state, line, names = ran(python, Path(python).parents[1], **nothing, **setting)
        assert digest == own[0]
        assert agrees == "True"
        expected = next(one.file for one in INSTRUCTION_SETS if processor.flags() >= one.flags)
        assert state == f"{expected} False {has_onednn() and not setting}"
        assert "kernels in C (formulas by NumPy: no C compiler)" in line
        assert set(names.split()) >= COUNTED
        assert any(name.startswith("opbox_winograd") for name in names.split())
        assert not (tmp_path / "cache" / "kernels").exists() or not list((tmp_path / "cache" / "kernels").iterdir())


def test_a_machine_without_libgomp_has_that_of_the_wheel(python: str, tmp_path: Path) -> None:
    """oneDNN is loaded, and kernels have threads; the machine's own library is hidden by a file that is none."""
    (tmp_path / "libgomp.so.1").touch()
    script = (
        "from opbox_ops.cpu.description import cpu_description; from opbox_ops.cpu.onednn.library import library; "
        "from opbox_ops.cpu.runtime import c_compiler; print(library() is not None, c_compiler.thread_count()); "
        "print(cpu_description().line); print([line for line in open('/proc/self/maps') if 'libgomp.so' in line][0])"
    )
    settings = {"LD_LIBRARY_PATH": str(tmp_path), "OMP_NUM_THREADS": "3"}
    done = subprocess.run(
        [python, "-c", script], cwd="/", env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    state, line, mapped, *_ = done.stdout.splitlines()
    assert state == f"{has_onednn()} 3"
    assert "libgomp" not in line
    assert str(Path(python).parents[1]) in mapped


# Imported by the process that runs a session's code, which compiles nothing.
OWN_CODE = """\
    import numpy as np
    import opbox as mx

    class Probe(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            from opbox_ops.cpu.algorithms.winograd import winograd
            from opbox_ops.cpu.algorithms.blocked_product import ProductSizes, blocked_product
            from opbox_ops.cpu.runtime import c_compiler

            a, out = np.asarray(in_data[0]), np.zeros((64, 64), np.float32)
            blocked_product().product(ProductSizes(64, 64, 64), (a, a, None, out))()
            assert np.allclose(out, a @ a, atol=1e-3)
            numbers = winograd() is not None, c_compiler.may_compile(), c_compiler.thread_count()
            self.assign(out_data[0], req[0], np.array(numbers, np.float32))

    @mx.operator.register("probe")
    class ProbeProp(mx.operator.CustomOpProp):
        def infer_shape(self, in_shape):
            return in_shape, [(3,)], []

        def create_operator(self, ctx, shapes, dtypes):
            return Probe()

    a = mx.nd.array(np.random.default_rng(0).normal(size=(64, 64)))
    print(mx.nd.Custom(a, op_type="probe").asnumpy().tolist())
"""


@pytest.mark.skipif(not processor.has_vectors(), reason="a processor with neither AVX-512 nor AVX2")
def test_code_of_a_session_has_them_too(python: str, tmp_path: Path) -> None:
    token = [{"name": "py", "token": "py-secret-of-22-characters", "scopes": ["run", "upload-python"]}]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    environment |= {"PATH": str(tmp_path), "OMP_NUM_THREADS": "2", "OPBOX_CACHE_DIR": str(tmp_path / "cache")}
    settings = {"OPBOX_TOKENS": json.dumps(token), "OPBOX_RUNTIME_DIR": str(tmp_path)}
    command = [python, "-m", "opbox_service.serve", "--port", "0", "--isolation", "process"]
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(textwrap.dedent(OWN_CODE))
    with (
        log.open("w") as words,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=words, text=True, cwd="/", env={**environment, **settings}
        ) as server,
    ):
        assert server.stdout is not None
        try:
            first = server.stdout.readline()
            assert first, log.read_text()
            address = {"OPBOX_URL": first.split()[-1], "OPBOX_TOKEN": "py-secret-of-22-characters"}
            client = subprocess.run(
                [python, str(program)], cwd=tmp_path, env={**environment, **address}, capture_output=True, text=True
            )
            assert client.returncode == 0, client.stderr + log.read_text()
            assert client.stdout.startswith("[1.0, 0.0, ")
        finally:
            server.terminate()
