-- Tasks of every instance by state; changes nothing.
--   reply: insts [i or group, state, …]
local reason = absence()
if reason then return cjson.encode({ gone = reason }) end
return cjson.encode({ insts = call('HGETALL', KEY.inst), epoch = M.epoch, revision = M.revision })
