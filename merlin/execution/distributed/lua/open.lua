-- Put the study's progress here, atomically replacing what there was.
--   args: only_if_gone, seen [epoch, revision] (the latest that the caller knows of), meta {field: value}, graph {i: JSON}, insts {i | group: JSON}, active [[i, rank]],
--         verdicts [verdict]; KEYS[18] and KEYS[19] hold the runs and the ready runs, written before, under names of
--         this call alone
--   reply: opened
local STAGED_RUNS, STAGED_READY = KEYS[18], KEYS[19]
if args.only_if_gone then
  local reason = absence()
  local is_older = M and M.epoch == args.seen[1] and M.revision < args.seen[2]
  if reason and reason ~= '' or not (reason or is_older or is_stale(server_run_id())) then
    call('DEL', STAGED_RUNS, STAGED_READY)
    return cjson.encode({ opened = false })
  end
end
call('HINCRBY', KEY.meta, 'revision', 1) -- refused when the server is full, before anything is written
local counters = KEY.counters
KEY.counters = nil
for _, key in pairs(KEY) do call('DEL', key) end
KEY.counters = counters
call('PERSIST', counters)
if call('EXISTS', STAGED_RUNS) == 1 then call('RENAME', STAGED_RUNS, KEY.runs) end
if call('EXISTS', STAGED_READY) == 1 then call('RENAME', STAGED_READY, KEY.ready) end
call('PERSIST', KEY.runs)
call('PERSIST', KEY.ready)
for i, description in pairs(args.graph) do call('HSET', KEY.graph, i, description) end
for name, state in pairs(args.insts) do call('HSET', KEY.inst, name, state) end
for _, entry in ipairs(args.active) do
  call('ZADD', KEY.active, entry[2], entry[1])
  call('ZADD', KEY.wanting, entry[2], entry[1])
end
for name, value in pairs(args.meta) do call('HSET', KEY.meta, name, value) end
call('HSET', KEY.meta, 'created', string.format('%.6f', now), 'run_id', server_run_id(), 'revision', 1)
absence()
M.revision = 1
verdicts = args.verdicts
return finish({ opened = true })
