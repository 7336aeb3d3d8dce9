-- Hold an offer. ARGV: lease, id of this call, worker, ms; reply: {"chunk", envelope}, {"none"} or {"gone"}
if gone() then return { 'gone' } end
local lease, asked = ARGV[1], ARGV[2] .. ' '
local held = call('HGET', LEASES, lease)
if held then -- perhaps by this call, whose reply was lost
  return string.sub(held, 1, #asked) == asked and { 'chunk', string.match(held, '({.*)') } or { 'none' }
end
local offer = call('HGET', OFFERS, lease)
if not offer then return { 'none' } end
local envelope = string.match(offer, '({.*)')
call('HSET', LEASES, lease, asked .. ARGV[3] .. ' ' .. now .. ' ' .. envelope)
call('HDEL', OFFERS, lease)
call('ZADD', EXPIRY, now + ARGV[4], lease)
call('XADD', MAIL, '*', 'taken', lease, 'worker', ARGV[3])
return { 'chunk', envelope }
