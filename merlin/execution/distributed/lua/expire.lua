-- End the leases that have expired, each with a letter. ARGV: token; reply: their number
local why = unfit(ARGV[1])
if why then return why end
if call('ZCARD', EXPIRY) < call('HLEN', LEASES) then -- times were deleted: set new ones
  for _, lease in ipairs(call('HKEYS', LEASES)) do call('ZADD', EXPIRY, 'NX', now + 60000, lease) end
end
local late = call('ZRANGEBYSCORE', EXPIRY, '-inf', now, 'LIMIT', 0, 1000)
for _, lease in ipairs(late) do
  call('XADD', MAIL, '*', 'expired', lease)
  drop(lease)
end
return #late
