-- Forget the outstanding tickets of instances with work of which nothing was taken or issued for a while: their
-- messages are lost, or as good as lost.
--   args: quiet_s, among [i] or nil
--   reply: instances [i]
local early = begin()
if early then return early end
promote()
save()
local quiet, any = {}, false
local among = nil
if args.among then
  among = {}
  for _, i in ipairs(args.among) do among[i] = true end
end
local out = {}
for _, member in ipairs(call('ZRANGE', KEY.active, 0, -1)) do
  local i = tonumber(member)
  local D = inst(i)
  if (not among or among[i]) and D.tickets > 0 and now - D.touched >= args.quiet_s then
    touch(i).tickets = 0
    quiet[member], any = true, true
    out[#out + 1] = i
  end
end
if any then
  local all = call('HGETALL', KEY.tickets)
  for k = 1, #all, 2 do
    if quiet[all[k + 1]] then
      call('HDEL', KEY.tickets, all[k])
      count('tickets_lost', 1)
    end
  end
end
return finish({ instances = out })
