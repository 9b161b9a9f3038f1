-- SPDX-License-Identifier: MIT
-- The code blocks of a Markdown file, as `perilune doctest` reads them.
local doctest = require "perilune.command.doctest"

return { blocks = function(path) return assert(doctest.blocks(path)) end, expected = doctest.expected }
