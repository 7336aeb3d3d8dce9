-- End the run, whoever owns it
call('DEL', OWNER, OFFERS, LEASES, EXPIRY, MAIL)
call('HSET', OWNER, 'over', server()) -- so that nobody thinks it was lost
call('EXPIRE', OWNER, 3600)
return 'over'
