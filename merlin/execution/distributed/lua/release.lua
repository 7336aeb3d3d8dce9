-- Release the ownership; with "1", because the study is over. ARGV: token, "1" or "0"
local why = unfit(ARGV[1])
if why then return why end
if ARGV[2] == '0' then
  call('HSET', OWNER, 'until', 0)
else
  finish()
end
return 'own'
