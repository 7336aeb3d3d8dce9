-- Add offers, mark letters up to one as handled, and delete old ones. ARGV: token, that letter, ms to keep letters, pairs of lease and envelope
local why = unfit(ARGV[1])
if why then return why end
call('HSET', OWNER, 'read', ARGV[2])
for k = 4, #ARGV, 2 do
  call('HSET', OFFERS, ARGV[k], now .. ' ' .. ARGV[k + 1])
end
call('XTRIM', MAIL, 'MINID', '~', math.min(now - ARGV[3], tonumber(string.match(ARGV[2], '%d+'))))
return 'own'
