-- Remove offers and leases that nobody may use any more. ARGV: token, leases
local why = unfit(ARGV[1])
if why then return why end
for k = 2, #ARGV do drop(ARGV[k]) end
return 'own'
