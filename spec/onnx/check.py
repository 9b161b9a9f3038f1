# SPDX-License-Identifier: MIT
# What onnx and onnxruntime make of files that T.onnx.save writes, by hand:
#   build/bin/perilune run spec/onnx/write.lua -- FOLDER
#   python3 spec/onnx/check.py FOLDER       (needs onnx, onnxruntime, safetensors, numpy)
# Each file must pass onnx.checker with shape inference, and give perilune's numbers.
import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

onnxruntime.set_default_logger_severity(4)
good, bad = 0, 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx"))):
    name = os.path.basename(path)
    try:
        onnx.checker.check_model(onnx.load(path), full_check=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        data = load_file(path + ".safetensors")
        calls = sorted({key.split(".")[0] for key in data})
        for call in calls:
            feed = {i.name: data[f"{call}.{i.name}"] for i in session.get_inputs()}
            for out, got in zip(session.get_outputs(), session.run(None, feed)):
                want = data[f"{call}.{out.name}"]
                want = want.reshape(()) if got.shape == () else want
                assert got.shape == want.shape, (got.shape, want.shape)
                assert np.allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True), np.abs(got - want).max()
        good += 1
    except Exception as error:
        bad += 1
        print(name, str(error).replace("\n", " ")[:300])
print(f"{good} good, {bad} bad")
sys.exit(bad > 0)
