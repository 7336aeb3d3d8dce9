-- The study as a whole; changes nothing.
--   reply: meta [field, value, …], num_running, num_verdicts, wakeup_s or nil, has_work, now
local reason = absence()
if reason then return cjson.encode({ gone = reason, epoch = call('HGET', KEY.meta, 'epoch') or '' }) end
if is_stale(server_run_id()) then return cjson.encode({ gone = '', restarted = true }) end
local due = call('ZRANGE', KEY.deferred, 0, 0, 'WITHSCORES')[2]
return cjson.encode({
  meta = call('HGETALL', KEY.meta),
  num_running = call('HLEN', KEY.leases),
  num_verdicts = call('ZCARD', KEY.verdicts),
  due = due or nil, -- as text: cjson rounds
  has_work = M.stop_reason == '' and (call('ZCARD', KEY.active) > 0 or call('LLEN', KEY.pending) > 0),
  now = now,
  epoch = M.epoch,
  revision = M.revision,
})
