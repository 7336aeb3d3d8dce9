-- The holder of a lease ends its chunk, in whole or in part.
--   args: op (which report it is), lease, chunk (as it was leased), runs [[lo, hi, outcome]], again [chunk] (to run again at once),
--         later [{chunk, delay_s}], alone {chunk, task, infrastructure, limit, signal} or nil (a single task whose
--         worker is gone), learn {num, busy_s, target_s} or nil, stop ("", "hard_fail"; "stop_workers", with
--         which the study goes on), note, judge_failures, counts {name: num}
--   reply: held (false: somebody else has taken the chunk over, nothing was changed; true, and nothing is changed
--         either, if the same report was accepted before)
local early = begin()
if early then return early end

local entry = call('HGET', KEY.leases, args.lease)
if not entry then return finish({ held = is_repeated(args.lease, args.op) }) end
local i, S = args.chunk.i, spec(args.chunk.i)
local leased = cjson.decode(entry).chunk
if leased.i ~= i or leased.lo ~= args.chunk.lo or leased.hi ~= args.chunk.hi then
  return finish({ bug = 'the lease ' .. args.lease .. ' is for another chunk: ' .. entry })
end
call('HDEL', KEY.leases, args.lease)
call('ZREM', KEY.expiry, args.lease)
remember(args.lease, args.op)
for name, num in pairs(args.counts) do count(name, num) end

local has_failed = false
for _, run in ipairs(args.runs) do
  move(i, run[1], run[2], run[3])
  has_failed = has_failed or run[3] == FAILED or run[3] == SOFT_FAILED
end
if #args.runs > 0 then note_change(i, args.chunk.lo, args.chunk.hi) end
for _, entry in ipairs(args.later) do defer(entry.chunk, now + entry.delay_s) end
for _, chunk in ipairs(args.again) do requeue(chunk) end

local alone = args.alone
if alone then
  local field = string.format('%d:%.0f:%s', i, alone.task, alone.infrastructure and 'lost' or 'killed')
  local deaths = call('HINCRBY', KEY.deaths, field, 1)
  if deaths < (alone.limit or S.crash_limit) then
    requeue(alone.chunk)
  else
    local times = deaths == 1 and 'once' or deaths .. ' times'
    local because = alone.signal ~= '' and ' (' .. alone.signal .. ')' or ''
    local cause = (alone.infrastructure and 'its worker was lost ' or 'killed its worker ') .. times .. because
    judge(i, alone.task, alone.task + 1, FAILED, cause, alone.chunk.attempt)
    check_failures(i, cause)
  end
end

if args.learn then learn(i, args.learn.num, args.learn.busy_s, args.learn.target_s) end
local because = args.note ~= '' and ': ' .. args.note or ''
if args.stop == 'hard_fail' then
  stop(string.format("a task of step '%s' failed hard%s", S.id, because), true)
elseif has_failed and args.judge_failures then
  check_failures(i, args.note)
end
propagate()
return finish({ held = true })
