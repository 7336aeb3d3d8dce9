-- Take over chunks whose lease has run out.
--   args: token (of this call, makes new lease ids), lease_s, worker, limit
--   reply: taken [{chunk, lease}]
local early = begin()
if early then return early end
local taken = {}

-- asked again because the reply was lost on its way
repeat
  local lease = args.token .. '.' .. (#taken + 1)
  local again = call('HGET', KEY.leases, lease)
  if again then
    local entry = cjson.decode(again)
    taken[#taken + 1] = { chunk = entry.chunk, lease = lease }
  end
until not again
if #taken > 0 then return finish({ taken = taken }) end

for _, old in ipairs(call('ZRANGEBYSCORE', KEY.expiry, '-inf', now, 'LIMIT', 0, args.limit)) do
  local is_sane, entry = pcall(cjson.decode, call('HGET', KEY.leases, old))
  call('HDEL', KEY.leases, old)
  call('ZREM', KEY.expiry, old)
  if is_sane and type(entry) == 'table' and type(entry.chunk) == 'table' then
    local lease = args.token .. '.' .. (#taken + 1)
    taken[#taken + 1] = { chunk = entry.chunk, lease = lease }
    entry.worker = args.worker
    hold(lease, entry, args.lease_s)
    count('expired', 1)
  else
    count('damaged', 1) -- nobody knows of what this was the lease
  end
end
return finish({ taken = taken })
