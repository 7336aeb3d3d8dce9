-- What all scripts share. KEYS: see docs/mailbox-keys.md.
local call = redis.call
local OWNER, OFFERS, LEASES, EXPIRY, MAIL = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) -- ms

-- The server's run id; "" if access is denied.
local function server()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
end

-- Return whether the server has restarted since it had this run id, and may hold old data.
local function forgot(seen)
  if seen == '' or seen == server() then return false end
  local info = redis.pcall('INFO', 'persistence')
  return type(info) == 'string' and string.match(info, 'aof_enabled:(%d)') == '0'
end

-- Return whether the server does not hold the study, or holds old data of it from before a restart.
local function gone()
  local seen = call('HGET', OWNER, 'server')
  return not seen or forgot(seen)
end

-- Return "gone", "lost" if the token is not the owner's, or nil.
local function unfit(token)
  if gone() then return 'gone' end
  return call('HGET', OWNER, 'token') ~= token and 'lost' or nil
end

-- End the run; for an hour the study does not look lost.
local function finish()
  call('DEL', OWNER, OFFERS, LEASES, EXPIRY, MAIL)
  call('HSET', OWNER, 'over', server())
  call('EXPIRE', OWNER, 3600)
end

local function drop(lease)
  call('HDEL', OFFERS, lease)
  call('HDEL', LEASES, lease)
  call('ZREM', EXPIRY, lease)
end
