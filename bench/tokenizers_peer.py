# SPDX-License-Identifier: MIT
"""The other side of tokenizers.lua: encodes the documents of a file (between zero bytes), prints seconds of processor time,
the number of ids, their sum."""

import sys
import time

from tokenizers import Tokenizer

t = Tokenizer.from_file(sys.argv[1])
t.no_truncation()
t.no_padding()
with open(sys.argv[2], encoding="utf-8", newline="") as f:
    docs = f.read().split("\0")
begin = time.process_time()
out = t.encode_batch_fast(docs)
seconds = time.process_time() - begin
print(seconds, sum(len(e.ids) for e in out), sum(sum(e.ids) for e in out))
