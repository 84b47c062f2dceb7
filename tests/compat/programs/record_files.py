"""Record files: sequential and indexed, labels of one and many numbers, and bytes that look like a record's start."""

import json
import os
import struct

import mxnet as mx
import numpy as np

MAGIC = struct.pack("<I", 0xCED7230A)
records = [
    b"",
    b"a",
    b"four",
    b"12345",
    MAGIC,
    MAGIC * 2 + b"x",
    b"abcd" + MAGIC + b"efgh",
    b"abc" + MAGIC,
    bytes(range(256)),
]
out = {}

writer = mx.recordio.MXRecordIO("plain.rec", "w")
for record in records:
    writer.write(record)
writer.close()
with open("plain.rec", "rb") as file:
    out["bytes"] = file.read().hex()
reader = mx.recordio.MXRecordIO("plain.rec", "r")
out["read"] = [reader.read().hex() for _ in records]
out["end"] = [reader.read(), reader.read()]
reader.reset()
out["again"] = reader.read().hex() + reader.read().hex()
out["state"] = [reader.is_open, reader.writable]
reader.close()
out["closed"] = reader.is_open

indexed = mx.recordio.MXIndexedRecordIO("some.idx", "some.rec", "w")
for key in (3, 1, 4):
    indexed.write_idx(key, b"record %d" % key)
out["tell"] = indexed.tell()
indexed.close()
with open("some.idx") as file:
    out["index"] = file.read()
indexed = mx.recordio.MXIndexedRecordIO("some.idx", "some.rec", "r")
out["keys"] = [indexed.keys, indexed.read_idx(1).decode(), indexed.read_idx(3).decode(), indexed.read().decode()]
indexed.seek(4)
out["sought"] = indexed.read().decode()
indexed.close()
named = mx.recordio.MXIndexedRecordIO("named.idx", "named.rec", "w", key_type=str)
named.write_idx("a", b"1")
named.close()
out["size"] = os.path.getsize("named.rec")

packed = [
    mx.recordio.pack(mx.recordio.IRHeader(0, 4.5, 7, 2), b"data"),
    mx.recordio.pack(mx.recordio.IRHeader(5, [1, 2, 3], 8, 0), b"data"),
    mx.recordio.pack((0, np.array([0.5, 0.25]), 9, 1), b""),
]
out["packed"] = [one.hex() for one in packed]
for one in packed:
    header, data = mx.recordio.unpack(one)
    out.setdefault("unpacked", []).append(
        [header.flag, np.asarray(header.label).tolist(), header.id, header.id2, data.decode(), header._fields]
    )
print(json.dumps(out))
