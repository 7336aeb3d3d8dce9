-- Who runs what; changes nothing.
--   reply: leases [id, entry, …], expiry [id, time, …], now
local reason = absence()
if reason then return cjson.encode({ gone = reason }) end
return cjson.encode({
  leases = call('HGETALL', KEY.leases), expiry = call('ZRANGE', KEY.expiry, 0, -1, 'WITHSCORES'), now = now,
  epoch = M.epoch, revision = M.revision,
})
