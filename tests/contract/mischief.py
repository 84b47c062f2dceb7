"""An operator that does what it should not, as its parameter says; its source goes to the servers of the tests."""

import ctypes
import os
import re
import signal
import sys
import threading
import time

import numpy as np

import opbox as mx


def hold_the_lock():
    re.match("(a+)+$", "a" * 60 + "b")


def spin():
    while True:
        pass


def later(function, *args):
    """Do it once the command has been answered."""
    threading.Timer(0.5, function, args).start()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


class Mischief(mx.operator.CustomOp):
    def __init__(self, what, value):
        self.what = what
        self.value = value

    def forward(self, is_train, req, in_data, out_data, aux):
        result = getattr(self, self.what)(in_data)
        out_data[0][:] = in_data[0].asnumpy() if result is None else result

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        in_grad[0][:] = out_grad[0]

    def nothing(self, in_data):
        return in_data[0].asnumpy() + 1

    def segfault(self, in_data):
        ctypes.string_at(8)

    def segfault_in_a_thread(self, in_data):
        def touch():
            ctypes.string_at(8)

        threading.Thread(target=touch).start()
        time.sleep(600)

    def leave(self, in_data):
        os._exit(3)

    def leave_well(self, in_data):
        os._exit(0)

    def loop(self, in_data):
        while True:
            pass

    def sleep(self, in_data):
        time.sleep(600)

    def loop_with_the_lock(self, in_data):
        hold_the_lock()

    def memory(self, in_data):
        blocks = []
        while True:
            blocks.append(np.empty(1 << 24))

    def shared_memory(self, in_data):
        import mmap

        maps = []
        while True:
            maps.append(mmap.mmap(-1, 1 << 26))
            maps[-1].write(b"x" * (1 << 26))

    def fork_bomb(self, in_data):
        while True:
            if os.fork() == 0:
                os.setsid()
            time.sleep(0.001)

    def fork_and_stay(self, in_data):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
            os._exit(0)

    def threads(self, in_data):
        while True:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

    def stack(self, in_data):
        def deeper(n):
            return deeper(n + 1) + 1

        deeper(0)

    def native_stack(self, in_data):
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        sys.setrecursionlimit(1 << 30)
        numbers = (ctypes.c_int * 2)(1, 2)

        def compare(a, b):
            ctypes.CDLL(None).qsort(numbers, 2, 4, again)
            return 0

        again = kind(compare)
        # Python 3.12.1 counts calls of C, and ends them before the main thread's stack would overflow.
        threading.stack_size(256 << 10)
        thread = threading.Thread(target=compare, args=(None, None))
        thread.start()
        thread.join()

    def importing(self, in_data):
        __import__("no_such_package")

    def raising(self, in_data):
        return np.ones(3)[7]

    def write_to_input(self, in_data):
        in_data[0][:] = 0

    def environment(self, in_data):
        with open("/proc/self/environ", "rb") as file:
            text = b"\0".join([file.read(), *(f"{k}={v}".encode() for k, v in os.environ.items())])
        raise ValueError(text.decode())

    def kernels(self, in_data):
        c_compiler = __import__("opbox_ops.cpu.runtime.c_compiler", fromlist=["mode"])
        os, folder = __import__("os"), c_compiler.cache_folder()
        compiled = c_compiler.compiled_function("int mischief(void) { return 1; }", "mischief")
        raise ValueError(f"{os.stat(folder).st_uid} {os.access(folder, os.W_OK)} {compiled}")

    def environment_of(self, in_data):
        with open(f"/proc/{self.value}/environ", "rb") as file:
            raise ValueError(file.read().decode())

    def read(self, in_data):
        with open(self.value, "rb") as file:
            raise ValueError(repr(file.read(1000)))

    def write(self, in_data):
        with open(self.value, "wb") as file:
            file.write(b"x")

    def kill(self, in_data):
        os.kill(int(self.value), 9)

    def connect(self, in_data):
        import socket

        host, port = self.value.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()

    def descriptors(self, in_data):
        descriptors = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        raise ValueError([os.readlink(path) for path in descriptors if os.path.lexists(path)])

    def folder(self, in_data):
        with open("mine.txt", "w") as file:
            file.write("private")
        os.mkdir("closed")
        os.chmod("closed", 0)
        raise ValueError("folder " + os.getcwd())

    def files(self, in_data):
        self.leftovers = [os.open("/dev/null", os.O_RDONLY) for _ in range(100_000)]

    def large_file(self, in_data):
        with open("large", "wb") as file:
            file.truncate(1 << 40)

    # -- exceptions of every kind ---------------------------------------------------------------------------------

    def keyboard_interrupt(self, in_data):
        raise KeyboardInterrupt

    def generator_exit(self, in_data):
        raise GeneratorExit

    def base_exception(self, in_data):
        raise BaseException("the root of all")

    def system_exit(self, in_data):
        sys.exit("bye")

    def unspeakable(self, in_data):
        raise Unspeakable

    def long_winded(self, in_data):
        raise ValueError("x" * (50 << 20))

    # -- what goes on when the command has been answered ----------------------------------------------------------

    def spin_later(self, in_data):
        threading.Thread(target=spin, daemon=True).start()

    def spin_in_a_child(self, in_data):
        if os.fork() == 0:
            spin()

    def hold_the_lock_later(self, in_data):
        later(hold_the_lock)

    def stop_later(self, in_data):
        later(os.kill, os.getpid(), signal.SIGSTOP)

    def segfault_later(self, in_data):
        later(ctypes.string_at, 8)

    def close_descriptors(self, in_data):
        os.closerange(3, 4096)

    # -- what it holds ------------------------------------------------------------------------------------------------

    def memory_of_children(self, in_data):
        for _ in range(4):
            if os.fork() == 0:
                block = np.ones(50_000_000)
                time.sleep(600)
                os._exit(int(block[0]))
        time.sleep(600)

    def children_that_share(self, in_data):
        """What they have of their parent is its memory, not theirs."""
        self.leftovers = np.ones(60_000_000)
        for _ in range(6):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(2)

    def memory_without_a_name(self, in_data):
        self.leftovers = []
        while True:
            fd = os.memfd_create("mine")
            self.leftovers.append(fd)
            for _ in range(50):
                os.write(fd, b"x" * (1 << 20))

    def memory_in_flight(self, in_data):
        """Files in memory that are in a message which nobody reads; no process has them open."""
        import socket

        self.leftovers = socket.socketpair()
        while True:
            fd = os.memfd_create("mine")
            for _ in range(50):
                os.write(fd, b"x" * (1 << 20))
            socket.send_fds(self.leftovers[0], [b"x"], [fd])
            os.close(fd)

    def memory_out_of_sight(self, in_data):
        """Memory that other processes could map, of which this one has given up every page and which stays."""
        import mmap

        self.leftovers = []
        while True:
            self.leftovers.append(mmap.mmap(-1, 1 << 26))
            self.leftovers[-1].write(b"x" * (1 << 26))
            self.leftovers[-1].madvise(mmap.MADV_DONTNEED)

    def memory_in_sockets(self, in_data):
        """What nobody reads, in as many sockets as processes may open."""
        import socket

        for _ in range(20):
            if os.fork() == 0:
                pairs = []
                while True:
                    try:
                        pairs.append(socket.socketpair())
                    except OSError:
                        time.sleep(600)
                    for end in pairs[-1]:
                        end.setblocking(False)
                        for size in (1 << 15, 1 << 10):
                            try:
                                while True:
                                    end.send(b"x" * size)
                            except BlockingIOError:
                                pass
        time.sleep(600)

    def reach(self, in_data):
        """Whatever leads out of the process: sockets, keys, numbers, and calls that few programs use."""
        import platform
        import socket
        import struct

        libc = ctypes.CDLL(None, use_errno=True)
        path, server = self.value.split()
        done = []

        def attempt(name, action):
            try:
                if action() != -1:
                    done.append(name)
            except OSError:
                pass

        def pair():
            return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]

        attempt("path", lambda: socket.socket(socket.AF_UNIX).connect(path))
        attempt("path of datagrams", lambda: pair().sendto(b"word", path + ".datagrams"))
        attempt("path of a pair", lambda: pair().connect(path + ".datagrams"))
        attempt("address", lambda: socket.socket().connect(("127.0.0.1", int(server))))
        for name, family in (("netlink", 16), ("packet", 17), ("alg", 38), ("vsock", 40), ("unix", 1), ("internet", 2)):
            kind = socket.SOCK_SEQPACKET if name == "alg" else socket.SOCK_DGRAM
            attempt(name, lambda family=family, kind=kind: socket.socket(family, kind))
        attempt("pair of datagrams", pair)
        arm = platform.machine() == "aarch64"
        buffer = ctypes.create_string_buffer(4096)
        ring = ctypes.create_string_buffer(struct.pack("<30I", *[0] * 30))
        perf = ctypes.create_string_buffer(struct.pack("<II", 1, 120) + bytes(112))
        limits = ctypes.create_string_buffer(16)
        for name, number, arguments in (
            ("key", (248, 217)[arm], (b"user", b"mine", b"word", 4, -3)),
            ("shared memory", (29, 194)[arm], (0, 4096, 0o1600)),
            ("semaphore", (64, 190)[arm], (0, 1, 0o1600)),
            ("queue", (68, 186)[arm], (0, 0o1600)),
            ("named queue", (240, 180)[arm], (b"opbox", os.O_CREAT | os.O_RDWR, 0o600, None)),
            ("ring", 425, (4, ring)),
            ("page faults", (323, 282)[arm], (1,)),
            ("counters", (298, 241)[arm], (perf, 0, -1, -1, 0)),
            ("user namespace", (272, 97)[arm], (0x10000000,)),
            ("personality", (135, 92)[arm], (0x0040000,)),
            ("other's memory", (310, 270)[arm], (os.getpid(), buffer, 0, buffer, 0, 0)),
            ("traced", (101, 117)[arm], (0, 0, 0, 0)),
            ("secret memory", 447, (0,)),
            ("other's limits", (302, 261)[arm], (os.getppid(), 7, None, limits)),
        ):
            attempt(name, lambda number=number, arguments=arguments: libc.syscall(number, *arguments))
        raise ValueError(f"reached {done}")

    def many_files(self, in_data):
        for i in range(1 << 30):
            if i % 1000 == 0:
                os.mkdir(f"folder{i}")
                os.chdir(f"folder{i}")
            os.close(os.open(f"file{i}", os.O_CREAT | os.O_WRONLY))

    def many_bytes(self, in_data):
        for i in range(1 << 30):
            with open(f"file{i}", "wb") as file:
                file.write(b"x" * (50 << 20))

    def deleted_bytes(self, in_data):
        self.leftovers = []
        for i in range(100):
            self.leftovers.append(open(f"file{i}", "wb"))  # noqa: SIM115
            self.leftovers[-1].write(b"x" * (50 << 20))
            os.unlink(f"file{i}")

    def deep_folders(self, in_data):
        for _ in range(3000):
            os.mkdir("deeper")
            os.chdir("deeper")
        time.sleep(600)

    def fork_and_exit_for_ever(self, in_data):
        """No list of processes has it: each one is gone when its line is read."""
        if os.fork() == 0:
            os.setsid()
            while True:
                if os.fork():
                    os._exit(0)

    # -- what it says -------------------------------------------------------------------------------------------------

    def print_for_ever(self, in_data):
        while True:
            os.write(1, b"printed without an end\n" * 100)
            os.write(2, b"x" * 4096)

    def print_a_line(self, in_data):
        print('a line of its own"}', flush=True)

    def read_the_log(self, in_data):
        raise ValueError(repr(os.pread(2, 1000, 0)))

    def messages(self, in_data):
        """Well-formed messages that nobody has asked for."""
        import json
        import socket

        text = json.dumps({"kind": self.value, "reason": "r" * 10_000, "segments": [], "sessions": 1}).encode()
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                connection = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            while connection.type == socket.SOCK_SEQPACKET:
                connection.send(len(text).to_bytes(4, "little") + text)

    def connection(self, in_data):
        """Write what is no message on the worker's own connection, or close it."""
        import socket

        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                connection = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if connection.type == socket.SOCK_SEQPACKET:
                if self.value == "close":
                    connection.shutdown(socket.SHUT_RDWR)
                else:
                    connection.send(b"\x05\0\0\0junk!")
        time.sleep(600)


@mx.operator.register("mischief")
class MischiefProp(mx.operator.CustomOpProp):
    def __init__(self, what="nothing", value=""):
        super().__init__()
        self.what = what
        self.value = value
        if what == "raise_in_init":
            raise KeyboardInterrupt

    def list_arguments(self):
        if self.what == "loop_in_list_arguments":
            spin()
        return super().list_arguments()

    def infer_shape(self, in_shape):
        if self.what == "raise_in_infer_shape":
            raise GeneratorExit
        return super().infer_shape(in_shape)

    def create_operator(self, ctx, shapes, dtypes):
        return Mischief(self.what, self.value)


class Doubler(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        out_data[0][:] = in_data[0].asnumpy() * 2


@mx.operator.register("of_one_name")
class DoublerProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Doubler()


class Tripler(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        out_data[0][:] = in_data[0].asnumpy() * 3


class TriplerProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Tripler()
