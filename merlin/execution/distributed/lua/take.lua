-- Lease the next chunk to a worker.
--   args: lease (new, chosen by the caller), lease_s, worker, instance (its index) or nil, among [i] or nil (the
--   instances to choose from), workers or 0, ticket or nil
--   reply: chunk (none when nothing is ready or the study stops), lease; stale (the ticket is unknown or used up)
local early = begin()
if early then return early end

-- asked again because the reply was lost on its way
local entry = call('HGET', KEY.leases, args.lease)
if entry then return finish({ chunk = cjson.decode(entry).chunk, lease = args.lease }) end

local i = args.instance
if args.ticket then
  i = tonumber(call('HGET', KEY.tickets, args.ticket) or nil)
  if not i then
    count('duplicates', 1)
    return finish({ stale = true })
  end
  call('HDEL', KEY.tickets, args.ticket)
  local D = touch(i)
  D.tickets, D.touched = D.tickets - 1, now
end
if M.stop_reason ~= '' then return finish({}) end

promote()
save() -- so that `active` is up to date
if not i and args.among then
  local among = {}
  for _, candidate in ipairs(args.among) do among[candidate] = true end
  for _, member in ipairs(call('ZRANGE', KEY.active, 0, -1)) do
    if not i and among[tonumber(member)] then i = tonumber(member) end
  end
elseif not i then
  i = tonumber(call('ZRANGE', KEY.active, 0, 0)[1] or nil)
end
if not i or not has_work(inst(i)) then return finish({}) end

local D = touch(i)
local chunk = D.requeued > 0 and first_requeued(i, true) or cut(i, args.workers > 0 and args.workers or M.workers)
move_chunk(chunk, RUNNING)
D.started, D.touched = true, now
hold(args.lease, { chunk = chunk, worker = args.worker, since = now }, args.lease_s)
return finish({ chunk = chunk, lease = args.lease })
