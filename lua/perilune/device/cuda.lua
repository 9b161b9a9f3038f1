-- SPDX-License-Identifier: MIT
-- T.cuda: is there a GPU, its memory, streams and events. Tensors move with x:cuda(), x:to("cuda"), {device = "cuda"}.
local options = require "perilune.options"

return function(T, core)
  local raw = core.device
  local fail = options.fail
  local cuda = {}
  T.cuda = cuda

  -- T.cuda.is_available() → true, or false and why not
  function cuda.is_available() return raw.available() end
  function cuda.device_count() return raw.count() end

  -- ---- which GPU: a number from 0 on, or a name such as "cuda:1"; nil is the thread's current one -------------------

  function cuda.current_device() return raw.current() end
  -- "cuda" means this GPU from now on, in this thread
  function cuda.set_device(gpu)
    if gpu == nil then fail("set_device: a GPU's number from 0 on, or its name, is wanted, got nil") end
    raw.current(gpu)
  end
  -- T.cuda.device(1, f, …): f(…) with that one as the current GPU
  function cuda.device(gpu, f, ...)
    if gpu == nil then fail("device: a GPU's number from 0 on, or its name, is wanted, got nil") end
    if type(f) ~= "function" then fail("device: a function is wanted after the GPU, got %s", options.describe(f)) end
    return raw.within(gpu, f, ...)
  end

  function cuda.get_device_name(gpu) return raw.info(gpu).name end
  function cuda.get_device_capability(gpu)
    local info = raw.info(gpu)
    return info.major, info.minor
  end
  -- {name, libraries, major, minor, processors, memory, available}
  function cuda.get_device_properties(gpu) return raw.info(gpu) end
  -- Waits for everything that was queued on the GPU; raises what its kernels reported meanwhile.
  function cuda.synchronize(gpu) if raw.available() then raw.synchronize(gpu) end end

  -- ---- memory, in bytes -----------------------------------------------------------------------------------

  function cuda.memory_allocated(gpu) return raw.memory(gpu).live end
  function cuda.max_memory_allocated(gpu) return raw.memory(gpu).peak end
  function cuda.memory_reserved(gpu) return raw.memory(gpu).reserved end
  -- {live, peak, reserved, blocks, allocations, retries, limit}
  function cuda.memory_stats(gpu) return raw.memory(gpu) end
  function cuda.reset_peak_memory_stats(gpu) raw.reset_peak(gpu) end
  function cuda.empty_cache() raw.trim() end -- of all GPUs
  -- At most this many bytes for tensors; nil: what the GPU has.
  function cuda.set_memory_limit(bytes, gpu) raw.limit(bytes, gpu) end
  -- free, total
  function cuda.mem_get_info(gpu)
    local info = raw.info(gpu, true)
    return info.available, info.memory
  end

  -- ---- streams and events -----------------------------------------------------------------------------------

  -- T.cuda.Stream{priority=, device=} → a stream of one GPU; T.cuda.stream(s, f, …) runs f on it, with its GPU as the
  -- current one
  function cuda.Stream(opts)
    local o = options.check("Stream", opts, { "priority", "device" })
    return raw.stream(o.priority or 0, o.device)
  end
  function cuda.stream(s, f, ...)
    if type(f) ~= "function" then fail("stream: a function is wanted after the stream, got %s", options.describe(f)) end
    return raw.on_stream(s, f, ...)
  end
  local stream = raw.methods "Stream"
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

  -- T.cuda.Event{enable_timing=} → an event
  function cuda.Event(opts)
    local o = options.check("Event", opts, { "enable_timing" })
    return raw.event(o.enable_timing or false)
  end
  local event = raw.methods "Event"
  function event:record(s) raw.event_record(self, s) end
  function event:wait(s) raw.stream_wait(s, self) end
  function event:synchronize() raw.event_synchronize(self) end
  function event:query() return raw.event_query(self) end
  function event:elapsed_time(other) return raw.event_elapsed(self, other) end -- milliseconds

  -- ---- settings -----------------------------------------------------------------------------------------------

  -- Products of f32 may round their factors to TF32 (off at first) → what it was
  function cuda.allow_tf32(on) return raw.setting("tf32", on) end
  -- The same bits in every run (on at first) → what it was
  function cuda.deterministic(on) return raw.setting("deterministic", on) end
  -- Libraries may time their algorithms and keep the fastest → what it was
  function cuda.benchmark(on) return raw.setting("benchmark", on) end
  -- cuDNN may compute what it can (on at first); false: own kernels → what it was
  function cuda.cudnn(on) return raw.setting("cudnn", on) end

  -- T.set_default_device("cuda"): where tensors are made from then on; T.get_default_device() says where
  function T.set_default_device(name)
    if type(name) ~= "string" then
      fail("set_default_device: a device is wanted, \"cpu\", \"cuda\" or \"cuda:1\", got %s",
        options.describe(name))
    end
    raw.default(name)
  end
  function T.get_default_device() return raw.default() end
end
