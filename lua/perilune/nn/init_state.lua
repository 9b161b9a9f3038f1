-- SPDX-License-Identifier: MIT
--- Whether initializers write: `off` while a network is built whose parameters come from a file.
return { off = false }
