-- Look at verdicts that the ledger does not hold yet; or forget those that it holds.
--   args: after (order of the last one seen), limit; or else written [[first order, last order]], epoch (of theirs)
--   reply: verdicts [verdict]
if args.written then
  local early = begin()
  if early then return early end
  if args.epoch == M.epoch then
    for _, range in ipairs(args.written) do call('ZREMRANGEBYSCORE', KEY.verdicts, range[1], range[2]) end
  end
  return finish({})
end
local reason = absence()
if reason then return cjson.encode({ gone = reason }) end
return cjson.encode({
  verdicts = call('ZRANGEBYSCORE', KEY.verdicts, '(' .. args.after, '+inf', 'LIMIT', 0, args.limit),
  epoch = M.epoch,
  revision = M.revision,
})
