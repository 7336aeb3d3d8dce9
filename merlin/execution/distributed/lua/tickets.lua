-- Issue tickets for work that no outstanding ticket covers.
--   args: max_outstanding (per instance), workers or 0, limit (of this call), token (makes ids)
--   reply: tickets [{id, i, lo, hi, num, level}]
local early = begin()
if early then return early end
local out = {}
if M.stop_reason ~= '' then return finish({ tickets = out }) end
promote()
local workers = args.workers > 0 and args.workers or M.workers
if workers ~= M.ticket_workers or args.max_outstanding ~= M.ticket_limit then
  M.ticket_workers, M.ticket_limit = workers, args.max_outstanding
  call('HSET', KEY.meta, 'ticket_workers', workers, 'ticket_limit', args.max_outstanding)
  for _, member in ipairs(call('ZRANGE', KEY.active, 0, -1)) do touch(tonumber(member)) end
end
save()

-- The hull of the ready tasks, or else of what is to run again.
local function hull(i)
  local S = spec(i)
  local first, last = S.base, string.format('(%.0f', S.base + S.n)
  local lo = call('ZRANGEBYSCORE', KEY.ready, first, last, 'LIMIT', 0, 1)[1]
  if not lo then
    local chunk = first_requeued(i)
    return chunk.lo, chunk.hi
  end
  local hi = call('ZREVRANGEBYSCORE', KEY.ready, last, first, 'LIMIT', 0, 1)[1]
  return parse_run(lo)[1] - first, parse_run(hi)[2] - first
end

local function issue(i, level)
  local D, lo, hi = touch(i), hull(i)
  local id = args.token .. '.' .. (#out + 1)
  out[#out + 1] = { id = id, i = i, lo = lo, hi = hi, num = D.ready + D.queued, level = level }
  call('HSET', KEY.tickets, id, i)
  D.tickets, D.touched = D.tickets + 1, now
end

for _, member in ipairs(call('ZRANGE', KEY.wanting, 0, args.limit - 1)) do
  local i = tonumber(member)
  local D = inst(i)
  local first = spec(i).is_root and not D.started
  for k = 1, math.min(num_wanted(i), args.limit - #out) do
    issue(i, k <= D.requeued and 'retry' or first and 'expand' or 'run')
  end
end
return finish({ tickets = out })
