-- Forget the study, but for a tombstone that says why.
--   args: reason, keep_s
--   reply: was_there
local is_sane, reason = pcall(absence) -- what is damaged goes, too
for name, key in pairs(KEY) do
  if name ~= 'counters' then call('DEL', key) end
end
call('HSET', KEY.meta, 'dropped', args.reason, 'created', string.format('%.6f', now))
call('EXPIRE', KEY.meta, args.keep_s)
call('EXPIRE', KEY.counters, args.keep_s)
return cjson.encode({ was_there = not is_sane or reason == nil })
