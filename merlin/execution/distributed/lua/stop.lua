-- Hand out nothing more; the first reason stays.
--   args: reason, now (running tasks are to be interrupted)
--   reply: nothing
local early = begin()
if early then return early end
stop(args.reason, args.now)
return finish({})
