-- End the run, no matter who owns it
finish()
return 'over'
