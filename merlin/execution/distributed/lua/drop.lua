-- End the run, no matter who owns it
call('DEL', OWNER, OFFERS, LEASES, EXPIRY, MAIL)
call('HSET', OWNER, 'over', server()) -- so that it does not look lost
call('EXPIRE', OWNER, 3600)
return 'over'
