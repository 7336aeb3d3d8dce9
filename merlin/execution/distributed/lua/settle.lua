-- End a lease with a report. ARGV: lease, report; reply: "held", "lost" or "gone"
if gone() then return 'gone' end
if call('HEXISTS', LEASES, ARGV[1]) == 0 then return 'lost' end
call('XADD', MAIL, '*', 'report', ARGV[1], 'text', ARGV[2])
drop(ARGV[1])
return 'held'
