-- Extend leases. ARGV: ms, leases; reply: {"lost", those that are not held any more} or {"gone"}
if gone() then return { 'gone' } end
local lost = { 'lost' }
for k = 2, #ARGV do
  if call('HEXISTS', LEASES, ARGV[k]) == 1 then
    call('ZADD', EXPIRY, now + ARGV[1], ARGV[k])
  else
    lost[#lost + 1] = ARGV[k]
  end
end
return lost
