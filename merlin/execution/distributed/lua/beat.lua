-- Renew leases.
--   args: leases [id], lease_s
--   reply: lost [id], those that are not held any more
local early = begin()
if early then return early end
local lost = {}
for _, lease in ipairs(args.leases) do
  if call('ZSCORE', KEY.expiry, lease) then
    call('ZADD', KEY.expiry, now + args.lease_s, lease)
  else
    lost[#lost + 1] = lease
  end
end
return finish({ lost = lost })
