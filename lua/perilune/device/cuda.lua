-- SPDX-License-Identifier: MIT
-- T.cuda: is there a GPU, its memory, streams and events. Tensors move with x:cuda(), x:to("cuda"), {device = "cuda"}.
local classes = require "perilune.classes"
local options = require "perilune.options"

return function(T, core)
  local raw = core.device
  local fail = options.fail
  local cuda = {}
  T.cuda = cuda

  --- T.cuda.is_available() → true, or false and a message
  -- Whether there is a GPU that tensors can live on; the message says what is missing.
  --   local yes, why = T.cuda.is_available()
  --   print(yes or type(why) == "string")  --> true
  function cuda.is_available() return raw.available() end

  --- T.cuda.device_count() → integer
  -- The GPUs that this process sees, at most 16; CUDA_VISIBLE_DEVICES says which. Where several are, their names are
  -- "cuda:0", "cuda:1", …, else "cuda".
  --   print(T.cuda.device_count() >= 0)  --> true
  function cuda.device_count() return raw.count() end

  -- ---- which GPU: a number from 0 on, or a name such as "cuda:1"; nil is the thread's current one -------------------

  --- T.cuda.current_device() → integer
  -- The number of this thread's current GPU, 0 at first; an error without one.
  --   if T.cuda.is_available() then
  --     print(T.cuda.current_device())
  --   end
  function cuda.current_device() return raw.current() end

  --- T.cuda.set_device(gpu)
  -- "cuda" means this GPU in this thread from now on: a number from 0 on, or a name such as "cuda:1".
  --   if T.cuda.device_count() > 1 then
  --     T.cuda.set_device(1)
  --   end
  function cuda.set_device(gpu)
    if gpu == nil then fail("set_device: a GPU's number from 0 on, or its name, is wanted, got nil") end
    raw.current(gpu)
  end

  --- T.cuda.device(gpu, f, …) → what f returns
  -- f(…) with that GPU as the current one, which is what "cuda" means.
  --   if T.cuda.is_available() then
  --     T.cuda.device(0, function() return T.ones(2, { device = "cuda" }) end)
  --   end
  function cuda.device(gpu, f, ...)
    if gpu == nil then fail("device: a GPU's number from 0 on, or its name, is wanted, got nil") end
    if type(f) ~= "function" then fail("device: a function is wanted after the GPU, got %s", options.describe(f)) end
    return raw.within(gpu, f, ...)
  end

  --- T.cuda.get_device_name([gpu]) → string
  -- The GPU's name.
  --   if T.cuda.is_available() then
  --     print(T.cuda.get_device_name())
  --   end
  function cuda.get_device_name(gpu) return raw.info(gpu).name end

  --- T.cuda.get_device_capability([gpu]) → major, minor
  -- The compute capability: 9, 0 for Hopper.
  --   if T.cuda.is_available() then
  --     print(T.cuda.get_device_capability())
  --   end
  function cuda.get_device_capability(gpu)
    local info = raw.info(gpu)
    return info.major, info.minor
  end

  --- T.cuda.get_device_properties([gpu]) → table
  -- name, libraries, major, minor, processors, memory, available.
  --   if T.cuda.is_available() then
  --     print(T.cuda.get_device_properties().processors)
  --   end
  function cuda.get_device_properties(gpu) return raw.info(gpu) end

  --- T.cuda.synchronize([gpu])
  -- Waits for all queued work; raises what kernels reported meanwhile, such as an index out of range.
  --   T.cuda.synchronize()
  function cuda.synchronize(gpu) if raw.available() then raw.synchronize(gpu) end end

  -- ---- memory, in bytes -----------------------------------------------------------------------------------

  --- T.cuda.memory_allocated([gpu]) → bytes
  -- What tensors on the GPU hold.
  --   print(T.cuda.memory_allocated() >= 0)  --> true
  function cuda.memory_allocated(gpu) return raw.memory(gpu).live end

  --- T.cuda.max_memory_allocated([gpu]) → bytes
  -- The most since the start or T.cuda.reset_peak_memory_stats().
  --   print(T.cuda.max_memory_allocated() >= T.cuda.memory_allocated())  --> true
  function cuda.max_memory_allocated(gpu) return raw.memory(gpu).peak end

  --- T.cuda.memory_reserved([gpu]) → bytes
  -- What was taken from the driver, cached blocks included.
  --   print(T.cuda.memory_reserved() >= 0)  --> true
  function cuda.memory_reserved(gpu) return raw.memory(gpu).reserved end

  --- T.cuda.memory_stats([gpu]) → {live, peak, reserved, blocks, allocations, retries, limit}
  -- Bytes of tensors, their peak, bytes taken from the driver; counts.
  --   print(T.cuda.memory_stats().blocks >= 0)  --> true
  function cuda.memory_stats(gpu) return raw.memory(gpu) end

  --- T.cuda.reset_peak_memory_stats([gpu])
  -- The peak starts again from what is held now.
  --   T.cuda.reset_peak_memory_stats()
  function cuda.reset_peak_memory_stats(gpu) raw.reset_peak(gpu) end

  --- T.cuda.empty_cache()
  -- Gives cached blocks back to the driver.
  --   T.cuda.empty_cache()
  function cuda.empty_cache() raw.trim() end -- of all GPUs

  --- T.cuda.set_memory_limit(bytes or nil[, gpu])
  -- At most this many bytes for tensors; more is an error. nil: what the GPU has.
  --   if T.cuda.is_available() then
  --     T.cuda.set_memory_limit(nil)
  --   end
  function cuda.set_memory_limit(bytes, gpu) raw.limit(bytes, gpu) end

  --- T.cuda.mem_get_info([gpu]) → free, total
  -- Bytes of the GPU's memory.
  --   if T.cuda.is_available() then
  --     print(T.cuda.mem_get_info())
  --   end
  function cuda.mem_get_info(gpu)
    local info = raw.info(gpu, true)
    return info.available, info.memory
  end

  -- ---- streams and events -----------------------------------------------------------------------------------

  -- T.cuda.Stream{priority=, device=} → a stream of one GPU; T.cuda.stream(s, f, …) runs f on it, with its GPU as the
  -- current one
  --- T.cuda.Stream{priority=, device=} → stream
  -- A queue of work beside the usual one: synchronize(), query(), wait_event(e), wait_stream(s), record_event().
  --   if T.cuda.is_available() then
  --     T.cuda.Stream():synchronize()
  --   end
  function cuda.Stream(opts)
    local o = options.check("Stream", opts, { "priority", "device" })
    return raw.stream(o.priority or 0, o.device)
  end

  --- T.cuda.stream(s, f, …) → what f returns
  -- Runs f with s as the current stream.
  --   if T.cuda.is_available() then
  --     T.cuda.stream(T.cuda.Stream(), function() return T.ones(2):cuda() end)
  --   end
  function cuda.stream(s, f, ...)
    if type(f) ~= "function" then fail("stream: a function is wanted after the stream, got %s", options.describe(f)) end
    return raw.on_stream(s, f, ...)
  end
  local stream = classes.class(raw.methods "Stream", "stream")
  function stream:device() return ("cuda:%d"):format(raw.stream_gpu(self)) end
  function stream:synchronize() raw.stream_synchronize(self) end
  function stream:query() return raw.stream_query(self) end
  function stream:wait_event(event) raw.stream_wait(self, event) end
  function stream:wait_stream(other)
    local e = raw.event(false)
    raw.event_record(e, other)
    raw.stream_wait(self, e)
  end
  function stream:record_event(event)
    event = event or cuda.Event()
    raw.event_record(event, self)
    return event
  end

  --- T.cuda.Event{enable_timing=} → event
  -- A mark in a stream: record(), wait(), synchronize(), query(), elapsed_time(later) in milliseconds.
  --   if T.cuda.is_available() then
  --     T.cuda.Event():record()
  --   end
  function cuda.Event(opts)
    local o = options.check("Event", opts, { "enable_timing" })
    return raw.event(o.enable_timing or false)
  end
  local event = classes.class(raw.methods "Event", "event")
  function event:record(s) raw.event_record(self, s) end
  function event:wait(s) raw.stream_wait(s, self) end
  function event:synchronize() raw.event_synchronize(self) end
  function event:query() return raw.event_query(self) end
  function event:elapsed_time(other) return raw.event_elapsed(self, other) end -- milliseconds

  -- ---- settings -----------------------------------------------------------------------------------------------

  --- T.cuda.allow_tf32(on) → what it was
  -- Products of f32 may round their factors to TF32; off at first. Another way to say
  -- T.set_float32_matmul_precision("high"), or "highest".
  --   T.cuda.allow_tf32(false)
  --   print(T.get_float32_matmul_precision())  --> highest
  function cuda.allow_tf32(on)
    local was = core.matmul_precision() ~= "highest"
    if on ~= nil then core.matmul_precision(on and "high" or "highest") end
    return was
  end

  --- T.cuda.deterministic(on) → what it was
  -- The same bits in every run; on at first.
  --   if T.cuda.is_available() then
  --     T.cuda.deterministic(true)
  --   end
  function cuda.deterministic(on) return raw.setting("deterministic", on) end

  --- T.cuda.cudnn(on) → what it was
  -- cuDNN computes convolutions, attention and recurrent nets where it can; on at first. Off: kernels of our own.
  --   if T.cuda.is_available() then
  --     T.cuda.cudnn(true)
  --   end
  function cuda.cudnn(on) return raw.setting("cudnn", on) end

  --- T.cuda.benchmark(on) → what it was
  -- Products, convolutions and attention: of the algorithms that cuBLASLt and cuDNN offer for a shape the fastest is
  -- measured at its first call and kept; off at first. Which one is fastest may differ from run to run, and with it the
  -- last bits, so nothing is measured while T.deterministic holds.
  --   if T.cuda.is_available() then
  --     T.cuda.benchmark(false)
  --   end
  function cuda.benchmark(on) return raw.setting("benchmark", on) end

  --- T.set_default_device(name)
  -- Makes tensors on this device from now on: "cpu", or "cuda" where there is a GPU.
  --   T.set_default_device("cpu")
  --   print(T.zeros(1))  --> {0.}  -- f32[1] cpu
  function T.set_default_device(name)
    if type(name) ~= "string" then
      fail("set_default_device: a device is wanted, \"cpu\", \"cuda\" or \"cuda:1\", got %s",
        options.describe(name))
    end
    raw.default(name)
  end

  --- T.get_default_device() → name
  -- Where tensors are made: "cpu" or "cuda".
  --   print(T.get_default_device())  --> cpu
  function T.get_default_device() return raw.default() end
end
