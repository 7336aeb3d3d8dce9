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

for k, old in ipairs(call('ZRANGEBYSCORE', KEY.expiry, '-inf', now, 'LIMIT', 0, args.limit)) do
  local entry = cjson.decode(call('HGET', KEY.leases, old))
  call('HDEL', KEY.leases, old)
  call('ZREM', KEY.expiry, old)
  local lease = args.token .. '.' .. k
  taken[k] = { chunk = entry.chunk, lease = lease }
  entry.worker = args.worker
  hold(lease, entry, args.lease_s)
  count('expired', 1)
end
return finish({ taken = taken })
