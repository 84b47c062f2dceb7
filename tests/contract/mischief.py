"""An operator that does what it should not, as its parameter says; its source goes to the servers of the tests."""

import ctypes
import os
import threading
import time

import numpy as np

import opbox as mx


class Mischief(mx.operator.CustomOp):
    def __init__(self, what, value):
        self.what = what
        self.value = value

    def forward(self, is_train, req, in_data, out_data, aux):
        found = getattr(self, self.what)(in_data)
        out_data[0][:] = in_data[0].asnumpy() if found is None else found

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
        pattern = "(a+)+$"
        import re

        re.match(pattern, "a" * 60 + "b")

    def memory(self, in_data):
        kept = []
        while True:
            kept.append(np.empty(1 << 24))

    def shared_memory(self, in_data):
        import mmap

        kept = []
        while True:
            kept.append(mmap.mmap(-1, 1 << 26))
            kept[-1].write(b"x" * (1 << 26))

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
        import sys

        sys.setrecursionlimit(1 << 30)
        numbers = (ctypes.c_int * 2)(1, 2)

        def compare(a, b):
            ctypes.CDLL(None).qsort(numbers, 2, 4, again)
            return 0

        again = kind(compare)
        compare(None, None)

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
        found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        raise ValueError([os.readlink(each) for each in found if os.path.lexists(each)])

    def folder(self, in_data):
        with open("mine.txt", "w") as file:
            file.write("private")
        os.mkdir("closed")
        os.chmod("closed", 0)
        raise ValueError("folder " + os.getcwd())

    def files(self, in_data):
        self.kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(100_000)]

    def large_file(self, in_data):
        with open("large", "wb") as file:
            file.truncate(1 << 40)

    def connection(self, in_data):
        """Write what is no message on the worker's own connection, or close it."""
        import socket

        for fd in range(3, 200):
            try:
                found = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if found.type == socket.SOCK_SEQPACKET:
                if self.value == "close":
                    found.shutdown(socket.SHUT_RDWR)
                else:
                    found.send(b"\x05\0\0\0junk!")
        time.sleep(600)


@mx.operator.register("mischief")
class MischiefProp(mx.operator.CustomOpProp):
    def __init__(self, what="nothing", value=""):
        super().__init__()
        self.what = what
        self.value = value

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
