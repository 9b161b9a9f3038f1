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
  function cuda.device_count() return raw.available() and 1 or 0 end
  function cuda.current_device()
    raw.info()
    return 0
  end
  function cuda.get_device_name() return raw.info().name end
  function cuda.get_device_capability()
    local info = raw.info()
    return info.major, info.minor
  end
  -- {name, libraries, major, minor, processors, memory, available}
  function cuda.get_device_properties() return raw.info() end
  -- Waits for everything that was queued; raises what kernels reported meanwhile.
  function cuda.synchronize() if raw.available() then raw.synchronize() end end

  -- ---- memory, in bytes -----------------------------------------------------------------------------------

  function cuda.memory_allocated() return raw.memory().live end
  function cuda.max_memory_allocated() return raw.memory().peak end
  function cuda.memory_reserved() return raw.memory().reserved end
  -- {live, peak, reserved, blocks, allocations, retries, limit}
  function cuda.memory_stats() return raw.memory() end
  function cuda.reset_peak_memory_stats() raw.reset_peak() end
  function cuda.empty_cache() raw.trim() end
  -- At most this many bytes for tensors; nil: what the device has.
  function cuda.set_memory_limit(bytes) raw.limit(bytes) end
  -- free, total
  function cuda.mem_get_info()
    local info = raw.info()
    return info.available, info.memory
  end

  -- ---- streams and events -----------------------------------------------------------------------------------

  -- T.cuda.Stream{priority=} → a stream; T.cuda.stream(s, f, …) runs f on it
  function cuda.Stream(opts)
    local o = options.check("Stream", opts, { "priority" })
    return raw.stream(o.priority or 0)
  end
  function cuda.stream(s, f, ...)
    if type(f) ~= "function" then fail("stream: a function is wanted after the stream, got %s", options.describe(f)) end
    return raw.on_stream(s, f, ...)
  end
  local stream = raw.methods "Stream"
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
      fail("set_default_device: a device is wanted, \"cpu\" or \"cuda\", got %s", options.describe(name))
    end
    raw.default(name)
  end
  function T.get_default_device() return raw.default() end
end
