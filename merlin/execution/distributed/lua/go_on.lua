-- Follow dependencies that exceeded the budget of the call that found them.
--   reply: nothing but `more` while there is more
local early = begin()
if early then return early end
return finish({})
