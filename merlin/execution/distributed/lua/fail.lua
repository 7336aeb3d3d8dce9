-- Fail every task of some instances that has not ended, whoever runs it: leases are void, nothing runs again.
--   args: instances [i], cause
--   reply: num (tasks, as text: cjson rounds)
local early = begin()
if early then return early end
local attempts = {} -- of the verdicts; they outrank what the holders of the leases may have written
for _, i in ipairs(args.instances) do attempts[i] = M.first_attempt end

local function note_attempt(chunk, attempt)
  attempts[chunk.i] = math.max(attempts[chunk.i], attempt)
end

local leases = call('HGETALL', KEY.leases)
for k = 1, #leases, 2 do
  local chunk = cjson.decode(leases[k + 1]).chunk
  if attempts[chunk.i] then
    note_attempt(chunk, chunk.attempt + 1)
    call('HDEL', KEY.leases, leases[k])
    call('ZREM', KEY.expiry, leases[k])
  end
end
for _, key in ipairs({ KEY.queue, KEY.deferred }) do
  for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
    if attempts[tonumber(string.sub(member, 1, 6))] then
      local chunk = cjson.decode(string.sub(member, 21))
      note_attempt(chunk, chunk.attempt)
      call('ZREM', key, member)
    end
  end
end

-- Ranges of an instance's tasks that have not ended.
local function open_ranges(i)
  local S, out = spec(i), {}
  local at, stop_at = S.base, string.format('(%.0f', S.base + S.n)
  repeat
    local page = call('ZRANGEBYSCORE', KEY.runs, at, stop_at, 'LIMIT', 0, PAGE)
    for _, member in ipairs(page) do
      local run = parse_run(member)
      local lo, hi, last = run[1] - S.base, run[2] - S.base, out[#out]
      at = run[2]
      if run[3] >= WAITING then
        if last and last[2] == lo then last[2] = hi else out[#out + 1] = { lo, hi } end
      end
    end
  until #page < PAGE
  return out
end

local num = 0
for _, i in ipairs(args.instances) do
  touch(i).requeued = 0
  for _, range in ipairs(open_ranges(i)) do
    judge(i, range[1], range[2], FAILED, args.cause, attempts[i])
    num = num + range[2] - range[1]
  end
end
propagate()
return finish({ num = string.format('%.0f', num) })
