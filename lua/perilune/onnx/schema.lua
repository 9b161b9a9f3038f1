-- SPDX-License-Identifier: MIT
--- The messages of ONNX files: numbers and names of fields, and of element types (onnx.ai/onnx/repo-docs/IR.html,
-- onnx.proto of opset 23).
-- @module perilune.onnx.schema
local narrow = require "perilune.onnx.narrow"

local schema = {}

local function many(name, what) return { name, what, list = true } end

local entry = { [1] = { "key", "bytes" }, [2] = { "value", "bytes" } }
local opset = { [1] = { "domain", "bytes" }, [2] = { "version", "int" } }

local tensor = {
  [1] = many("dims", "int"), [2] = { "data_type", "int" }, [4] = many("float_data", "float"),
  [5] = many("int32_data", "int"), [6] = many("string_data", "bytes"), [7] = many("int64_data", "int"),
  [8] = { "name", "bytes" }, [9] = { "raw_data", "bytes", far = true }, [10] = many("double_data", "double"),
  [11] = many("uint64_data", "int"), [13] = many("external_data", entry), [14] = { "data_location", "int" },
}
local sparse = { [1] = { "values", tensor }, [2] = { "indices", tensor }, [3] = many("dims", "int") }

local dimension = { [1] = { "value", "int" }, [2] = { "param", "bytes" } }
local shape = { [1] = many("dim", dimension) }
local kind = {}
local of_tensor = { [1] = { "elem_type", "int" }, [2] = { "shape", shape } }
local of_one = { [1] = { "elem_type", kind } }
kind[1], kind[4], kind[9] = { "tensor_type", of_tensor }, { "sequence_type", of_one }, { "optional_type", of_one }
local value = { [1] = { "name", "bytes" }, [2] = { "type", kind } }

local graph = {}
local attribute = {
  [1] = { "name", "bytes" }, [2] = { "f", "float" }, [3] = { "i", "int" }, [4] = { "s", "bytes" },
  [5] = { "t", tensor }, [6] = { "g", graph }, [7] = many("floats", "float"), [8] = many("ints", "int"),
  [9] = many("strings", "bytes"), [10] = many("tensors", tensor), [11] = many("graphs", graph),
  [14] = { "tp", kind }, [20] = { "type", "int" }, [21] = { "ref_attr_name", "bytes" },
  [22] = { "sparse_tensor", sparse },
}
local node = {
  [1] = many("input", "bytes"), [2] = many("output", "bytes"), [3] = { "name", "bytes" },
  [4] = { "op_type", "bytes" }, [5] = many("attribute", attribute), [7] = { "domain", "bytes" },
  [8] = { "overload", "bytes" },
}
graph[1], graph[2], graph[5] = many("node", node), { "name", "bytes" }, many("initializer", tensor)
graph[11], graph[12], graph[13] = many("input", value), many("output", value), many("value_info", value)
graph[15] = many("sparse_initializer", sparse)

local func = {
  [1] = { "name", "bytes" }, [4] = many("input", "bytes"), [5] = many("output", "bytes"),
  [6] = many("attribute", "bytes"), [7] = many("node", node), [9] = many("opset_import", opset),
  [10] = { "domain", "bytes" }, [11] = many("attribute_proto", attribute), [13] = { "overload", "bytes" },
}

schema.model = {
  [1] = { "ir_version", "int" }, [2] = { "producer_name", "bytes" }, [3] = { "producer_version", "bytes" },
  [6] = { "doc_string", "bytes" }, [7] = { "graph", graph }, [8] = many("opset_import", opset),
  [14] = many("metadata_props", entry), [25] = many("functions", func),
}

--- Number of an element type → its name in ONNX, our dtype, bits of an element. Types that have no dtype here are kept
-- in a wider one, see narrow.lua.
schema.types = {
  [1] = { "float", "f32", 32 }, [2] = { "uint8", "u8", 8 }, [3] = { "int8", "i8", 8 }, [5] = { "int16", "i16", 16 },
  [6] = { "int32", "i32", 32 }, [7] = { "int64", "i64", 64 }, [8] = { "string" }, [9] = { "bool", "bool", 8 },
  [10] = { "float16", "f16", 16 }, [11] = { "double", "f64", 64 }, [14] = { "complex64" }, [15] = { "complex128" },
  [16] = { "bfloat16", "bf16", 16 },
}
for number, name in pairs { [4] = "uint16", [12] = "uint32", [13] = "uint64", [17] = "float8e4m3fn",
  [18] = "float8e4m3fnuz", [19] = "float8e5m2", [20] = "float8e5m2fnuz", [21] = "uint4", [22] = "int4",
  [23] = "float4e2m1", [24] = "float8e8m0", [25] = "uint2", [26] = "int2" } do
  schema.types[number] = { name, narrow.kinds[name].dtype, narrow.kinds[name].bits }
end
schema.types[27], schema.types[28] = { "float6e2m3" }, { "float6e3m2" }

--- Names of the kinds of attributes, by number.
schema.attribute_kinds = { "float", "int", "string", "tensor", "graph", "floats", "ints", "strings", "tensors",
  "graphs", "sparse tensor", "sparse tensors", "type", "types" }

return schema
