-- Stay the owner. ARGV: token, owner's lease in ms; reply: {"own", now, beat}
local why = unfit(ARGV[1])
if why then return why end
call('HSET', OWNER, 'until', now + ARGV[2], 'server', server())
return { 'own', now, call('HINCRBY', OWNER, 'beat', 1) }
