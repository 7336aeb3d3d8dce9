-- End the leases that ran out, each with a letter. ARGV: token; reply: their number
local why = unfit(ARGV[1])
if why then return why end
local late = call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, 100)
for _, lease in ipairs(late) do
  call('XADD', MAIL, '*', 'expired', lease)
  drop(lease)
end
return #late
