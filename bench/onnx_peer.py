# SPDX-License-Identifier: MIT
# The peer of bench/onnx.lua: reads its requests line by line, answers each with one number.
import sys
import time

import numpy as np
import onnxruntime as ort

threads = int(sys.argv[1])
session = feeds = None


def peak_mb():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1e3


for line in sys.stdin:
    word, *rest = line.split()
    if word == "load":
        begin = time.monotonic()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = ort.InferenceSession(rest[0], options, providers=["CPUExecutionProvider"])
        feeds = dict(np.load(rest[1]))
        outputs = session.run(None, feeds)
        answer = time.monotonic() - begin
        np.savez(rest[2], **{o.name: v for o, v in zip(session.get_outputs(), outputs)})
    elif word in ("time", "work"):
        limit, n, count = float(rest[0]), 0, time.process_time if word == "work" else time.monotonic
        session.run(None, feeds)
        begin, start = time.monotonic(), count()
        while True:
            session.run(None, feeds)
            n += 1
            if time.monotonic() - begin > limit:
                break
        answer = (count() - start) / n
    elif word == "peak":
        answer = peak_mb()
    else:
        break
    print(answer, flush=True)
