-- Become or stay the owner. ARGV: token, session, owner's lease in ms, "1" to become it whoever is, name
-- reply: {"own", now, read, beat}, {"held", now}, {"over", now} or {"gone"}
if call('HEXISTS', OWNER, 'over') == 1 then return { 'over', now } end
if gone() then return { 'gone' } end
local found = call('HMGET', OWNER, 'token', 'session', 'until', 'read')
if found[2] ~= ARGV[2] then return { 'held', now } end -- a later run has begun
if found[1] ~= ARGV[1] and ARGV[4] ~= '1' and tonumber(found[3]) > now then
  return { 'held', now }
end
call('HSET', OWNER, 'token', ARGV[1], 'holder', ARGV[5] or '', 'until', now + ARGV[3], 'server', server())
return { 'own', now, found[4], call('HINCRBY', OWNER, 'beat', 1) }
