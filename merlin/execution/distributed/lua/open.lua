-- Begin a run. ARGV: token, session, owner's lease in ms, "1" to keep a study that exists
if ARGV[4] == '1' and not gone() then return 0 end
call('HSET', OWNER, 'token', ARGV[1]) -- first: a full server refuses this one, and nothing has changed
call('DEL', OWNER, OFFERS, LEASES, EXPIRY, MAIL)
call('HSET', OWNER, 'token', ARGV[1], 'session', ARGV[2], 'until', now + ARGV[3], 'server', server(), 'beat', 0, 'read', '0')
return 1
