-- Become or stay the owner. ARGV: token, session, owner's lease in ms, "1" to take it from any other owner, name
-- reply: {"own", now, read, beat}, {"held", now}, {"over", now} or {"gone"}
local over = call('HGET', OWNER, 'over')
if over then return { forgot(over) and 'gone' or 'over', now } end -- that may have been the run before this one
if gone() then return { 'gone' } end
local found = call('HMGET', OWNER, 'token', 'session', 'until', 'read')
if found[2] ~= ARGV[2] then return { 'held', now } end -- a later run has begun
local left = tonumber(found[3]) - now -- more than a full lease: the clock was set back
if found[1] ~= ARGV[1] and ARGV[4] ~= '1' and left > 0 and left <= tonumber(ARGV[3]) then
  return { 'held', now }
end
call('HSET', OWNER, 'token', ARGV[1], 'holder', ARGV[5] or '', 'until', now + ARGV[3], 'server', server())
return { 'own', now, found[4], call('HINCRBY', OWNER, 'beat', 1) }
