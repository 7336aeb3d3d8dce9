-- What all operations share; docs/progress-keys.md describes the keys. One call is one atomic event.
--
-- KEYS: see below.  ARGV: the time in seconds ("" for the server's own), the operation's arguments as JSON.
-- Every reply is JSON: {"gone": reason} when the study is not there, else what the operation says.
--
-- Tasks of all instances share one number line: task t of an instance is number base + t. The key `runs` tiles it
-- with "lo:hi:state", scored by lo, so its size follows the number of changes between neighbouring tasks.

local call = redis.call
local KEY = {}
for k, name in ipairs({
  'meta', 'graph', 'inst', 'runs', 'ready', 'active', 'leases', 'expiry', 'queue', 'deferred', 'deaths', 'tickets',
  'verdicts', 'pending', 'wanting', 'counters', 'settled',
}) do
  KEY[name] = KEYS[k]
end

local OK, FAILED, SKIPPED, SOFT_FAILED = 0, 1, 2, 4
local WAITING, READY, QUEUED, RUNNING = 10, 11, 12, 13
local NAME = {
  [0] = 'ok', [1] = 'failed', [2] = 'skipped', [4] = 'soft_failed', [10] = 'waiting', [11] = 'ready',
  [12] = 'queued', [13] = 'running',
}
local MAX_SPARSE_SPAN = 4096
local GROWTH, DECAY = 8, 0.5
local PAGE = 1000
local KEEP_COMPLETE_S = 7 * 24 * 3600
local SETTLED_S, MAX_SETTLED = 600, 10000 -- how long, and how many, reports are remembered
local budget = 5000 -- steps of following dependencies in one call; the rest waits in `pending`

local args = cjson.decode(ARGV[2])
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- ------------------------------------------------------------------------------------------------ the study

local M -- what is known about the study as a whole

-- Why the study is not there ("" = nobody knows it), or nil when it is.
local function absence()
  local f = call('HMGET', KEY.meta, 'epoch', 'dropped', 'stop_reason', 'first_attempt', 'num_open', 'workers',
    'run_id', 'num_tasks', 'revision', 'ticket_limit', 'ticket_workers')
  if f[2] then return f[2] end
  if not f[1] then return '' end
  M = {
    epoch = f[1], stop_reason = f[3] or '', first_attempt = tonumber(f[4]), num_open = tonumber(f[5]),
    workers = tonumber(f[6]), run_id = f[7] or '', revision = tonumber(f[9]),
    ticket_limit = tonumber(f[10] or 1), ticket_workers = tonumber(f[11] or f[6]),
  }
  -- a server that evicts keys may have kept only some of them
  local num_keys = tonumber(f[8]) > 0 and 3 or 2
  if call('EXISTS', KEY.graph, KEY.inst, KEY.runs) < num_keys then return '' end
  return nil
end

-- The server's run id, "" if we may not ask.
local function server_run_id()
  local info = redis.pcall('INFO', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
end

-- Whether the server has been started since, from something that may be older than what it had confirmed.
local function is_stale(run_id)
  if run_id == '' or M.run_id == '' or run_id == M.run_id then return false end
  local info = redis.pcall('INFO', 'persistence')
  return type(info) == 'string' and string.match(info, 'aof_enabled:(%d)') == '0'
end

-- ---------------------------------------------------------------------------------------- instances and runs

local specs, insts, groups = {}, {}, {}
local dirty_insts, dirty_groups = {}, {}

-- What the plan says about instance i.
local function spec(i)
  local found = specs[i]
  if not found then
    found = cjson.decode(call('HGET', KEY.graph, i))
    specs[i] = found
  end
  return found
end

-- What has become of instance i so far; whoever changes it says so with `touch`.
local function inst(i)
  local found = insts[i]
  if not found then
    found = cjson.decode(call('HGET', KEY.inst, i))
    found.soft_failed = found.soft_failed or 0 -- an earlier version opened the study
    insts[i] = found
  end
  return found
end

local function touch(i)
  dirty_insts[i] = true
  return inst(i)
end

local function num_failed(state)
  return state.failed + state.soft_failed
end

local function is_ended(i)
  local state = inst(i)
  return state.ok + num_failed(state) + state.skipped == spec(i).n
end

local function has_work(state)
  return state.ready > 0 or state.requeued > 0
end

local function parse_run(member)
  local lo, hi, state = string.match(member, '^(%d+):(%d+):(%d+)$')
  return { tonumber(lo), tonumber(hi), tonumber(state), member }
end

local function format_run(run)
  return string.format('%.0f:%.0f:%d', run[1], run[2], run[3])
end

-- The run over task t of instance i, in the instance's own numbers, clipped to what is below `stop`.
local function run_at(i, t, stop)
  local base = spec(i).base
  local run = parse_run(call('ZREVRANGEBYSCORE', KEY.runs, base + t, '-inf', 'LIMIT', 0, 1)[1])
  budget = budget - 1
  return run[1] - base, math.min(run[2] - base, stop), run[3]
end

local function replace_runs(old, new)
  local gone, gone_ready = {}, {}
  for _, run in ipairs(old) do
    gone[#gone + 1] = run[4]
    if run[3] == READY then gone_ready[#gone_ready + 1] = run[4] end
  end
  for k = 1, #gone, PAGE do
    call('ZREM', KEY.runs, unpack(gone, k, math.min(k + PAGE - 1, #gone)))
  end
  for k = 1, #gone_ready, PAGE do
    call('ZREM', KEY.ready, unpack(gone_ready, k, math.min(k + PAGE - 1, #gone_ready)))
  end
  for _, run in ipairs(new) do
    local member = format_run(run)
    call('ZADD', KEY.runs, run[1], member)
    if run[3] == READY then call('ZADD', KEY.ready, run[1], member) end
  end
end

-- Put tasks [lo, hi) of instance i into `state`: split what they were part of, merge with equal neighbours.
local function move(i, lo, hi, state)
  local S, D = spec(i), touch(i)
  local first, last = S.base, S.base + S.n
  lo, hi = first + lo, first + hi
  local left = call('ZREVRANGEBYSCORE', KEY.runs, lo, first, 'LIMIT', 0, 2) -- the run over lo, and the one before
  local rest = call('ZRANGEBYSCORE', KEY.runs, '(' .. string.format('%.0f', lo), hi)
  local over = { parse_run(left[1]) }
  local after
  for _, member in ipairs(rest) do
    local run = parse_run(member)
    if run[1] < hi then over[#over + 1] = run elseif hi < last then after = run end
  end
  for _, run in ipairs(over) do
    local name = NAME[run[3]]
    D[name] = D[name] - (math.min(run[2], hi) - math.max(run[1], lo))
  end
  D[NAME[state]] = D[NAME[state]] + hi - lo

  local made, new = { lo, hi, state }, {}
  local from, to = over[1], over[#over]
  if from[1] < lo then
    if from[3] == state then made[1] = from[1] else new[#new + 1] = { from[1], lo, from[3] } end
  elseif left[2] then
    local before = parse_run(left[2])
    if before[3] == state then
      made[1] = before[1]
      over[#over + 1] = before
    end
  end
  if to[2] > hi then
    if to[3] == state then made[2] = to[2] else new[#new + 1] = { hi, to[2], to[3] } end
  elseif after and after[3] == state then
    made[2] = after[2]
    over[#over + 1] = after
  end
  new[#new + 1] = made
  replace_runs(over, new)
end

-- --------------------------------------------------------------------------------------- verdicts and stopping

local verdicts = {}

local function add_verdict(i, lo, hi, outcome, cause, attempt)
  local last = verdicts[#verdicts]
  if last and last.i == i and last.hi == lo and last.outcome == outcome and last.cause == cause
    and last.attempt == attempt then
    last.hi = hi
  else
    verdicts[#verdicts + 1] = { i = i, lo = lo, hi = hi, outcome = outcome, cause = cause, attempt = attempt }
  end
end

local function stop(reason, at_once)
  if M.stop_reason == '' and reason ~= '' then
    M.stop_reason = reason
    call('HSET', KEY.meta, 'stop_reason', reason)
  end
  if at_once then call('HSET', KEY.meta, 'stop_now', 1) end
end

-- The canary and `max_failures`: what runs may end, nothing new starts. To the canary, a task that chose to fail shows
-- that its step works.
local function check_failures(i, note)
  local S, D = spec(i), inst(i)
  local num, because = num_failed(D), note ~= '' and ': ' .. note or ''
  if S.canary > 0 and S.n > S.canary and S.canary <= num and D.ok == 0 and D.soft_failed == 0 then
    stop(string.format("canary: the first %.0f tasks of step '%s' all failed%s", num, S.id, because))
  end
  if S.max_failed and num > S.max_failed then
    stop(string.format("max_failures: %.0f of %.0f tasks of step '%s' failed, %s are allowed%s", num, S.n,
      S.id, S.allowed, because))
  end
end

-- ------------------------------------------------------------------------------------------------- readiness

-- Work that follows from a change: {kind, …}; `pending` keeps what exceeds one call's budget.
local jobs, head, tail = {}, 1, 0

local function push_front(...)
  head = head - 1
  jobs[head] = { ... }
end

-- Tasks in [lo, hi) of instance i have ended; scattered ends of one instance become one event over their hull.
local function note_change(i, lo, hi)
  local last = jobs[tail]
  if head <= tail and last[1] == 'changed' and last[2] == i then
    last[3], last[4] = math.min(last[3], lo), math.max(last[4], hi)
    return
  end
  tail = tail + 1
  jobs[tail] = { 'changed', i, lo, hi }
end

local function judge(i, lo, hi, outcome, cause, attempt)
  move(i, lo, hi, outcome)
  note_change(i, lo, hi)
  add_verdict(i, lo, hi, outcome, cause, attempt)
end

-- Waiting tasks in [lo, hi) that `same` sources decide, as {lo, hi, what they are skipped for or nil}; and how far
-- the budget reached.
local function ready_tasks(t, lo, hi)
  local S, is_held = spec(t), inst(t).groups > 0
  local out, at, over = {}, lo, {}
  while at < hi and budget > 0 do
    local _, stop_at, state = run_at(t, at, hi)
    while state == WAITING and at < stop_at and budget > 0 do
      local upto, culprit, is_open = stop_at, nil, false
      for k, source in ipairs(S.same) do
        local run = over[k]
        if not run or run[2] <= at then
          run = { run_at(source, at, hi) }
          over[k] = run
        end
        upto = math.min(upto, run[2])
        if run[3] == SKIPPED or (run[3] == FAILED and not spec(source).continues) then
          culprit = culprit or source
        elseif run[3] >= WAITING then
          is_open = true
        end
      end
      if culprit or not (is_open or is_held) then out[#out + 1] = { at, upto, culprit } end
      at = upto
    end
    if state ~= WAITING then at = stop_at end
  end
  return out, at
end

-- The part of a block source that rows [lo, hi) take: its first and last + 1 task; the first is not below the last
-- when there is none.
local function rows_of(block, lo, hi)
  return math.max(lo - block[2], 0), math.min(hi - block[2], block[3])
end

-- How many shards from shard `at` on (below `stop_at`) have only rows that have ended, as the shard after the last of
-- them; and the first shard that is worth another look. Looks at one shard at least, then as far as the budget goes.
local function closed_shards(S, at, stop_at)
  for _, block in ipairs(S.block) do
    local a, b = rows_of(block, at * S.rows, stop_at * S.rows)
    while a < b do
      local shard = math.floor((block[2] + a) / S.rows)
      if budget <= 0 and shard > at then return shard, shard end
      local _, upto, state = run_at(block[1], a, b)
      if state >= WAITING then return shard, math.floor((block[2] + upto - 1) / S.rows) + 1 end
      a = upto
    end
  end
  return stop_at, stop_at
end

-- Waiting shards in [lo, hi) whose rows have all ended, and how far the budget reached.
local function ready_shards(t, lo, hi)
  local S, out, at = spec(t), {}, lo
  if inst(t).groups > 0 then return out, hi end
  while at < hi and (budget > 0 or at == lo) do
    local _, stop_at, state = run_at(t, at, hi)
    if state == WAITING then
      local closed, next_at = closed_shards(S, at, stop_at)
      if closed > at then out[#out + 1] = { at, closed } end
      at = next_at
    else
      at = stop_at
    end
  end
  return out, at
end

local follow = {}

-- Move waiting tasks in [lo, hi) to ready or skipped, as their sources say.
function follow.evaluate(t, lo, hi)
  local S = spec(t)
  local find = S.block and ready_shards or ready_tasks
  local found, reached = find(t, lo, hi)
  for _, range in ipairs(found) do
    if range[3] then
      local cause = string.format("a task of '%s', which it depends on, did not end ok", spec(range[3]).id)
      judge(t, range[1], range[2], SKIPPED, cause, M.first_attempt)
    elseif inst(t).groups == 0 then
      move(t, range[1], range[2], READY)
    end
  end
  budget = budget - #found
  if reached < hi then push_front('evaluate', t, reached, hi) end
end

-- Nothing that the target's group waited for ended ok.
function follow.skip(t, name, lo)
  local S, found = spec(t), {}
  local cause = string.format("no task of '%s', which it depends on, ended ok", name)
  while lo < S.n and budget > 0 do
    local _, upto, state = run_at(t, lo, S.n)
    if state == WAITING then found[#found + 1] = { lo, upto } end
    lo = upto
  end
  if lo < S.n then push_front('skip', t, name, lo) end
  for _, range in ipairs(found) do
    judge(t, range[1], range[2], SKIPPED, cause, M.first_attempt)
  end
end

-- Instance i may have ended as a whole; the last source of a group decides.
function follow.told(i)
  local D = inst(i)
  if D.told or not is_ended(i) then return end
  touch(i).told = true
  M.num_open = M.num_open - 1
  call('HSET', KEY.meta, 'num_open', M.num_open)
  for _, id in ipairs(spec(i).member_of) do
    local group = groups[id] or cjson.decode(call('HGET', KEY.inst, id))
    groups[id], dirty_groups[id] = group, true
    group.open = group.open - 1
    if D.ok > 0 or D.soft_failed > 0 or (D.failed > 0 and spec(i).continues) then group.flows = true end
    if group.open == 0 then
      local target = touch(group.target)
      target.groups = target.groups - 1
      if not group.flows then
        push_front('skip', group.target, group.name, 0)
      elseif target.groups == 0 then
        push_front('evaluate', group.target, 0, spec(group.target).n)
      end
    end
  end
end

-- Tasks in [lo, hi) of instance i have ended.
function follow.changed(i, lo, hi)
  local S = spec(i)
  push_front('told', i)
  for _, block in ipairs(S.shards) do -- {target, row of task 0}
    local T = spec(block[1])
    local first = math.floor((block[2] + lo) / T.rows)
    local last = math.min(T.n, math.floor((block[2] + hi - 1) / T.rows) + 1)
    push_front('evaluate', block[1], first, last)
  end
  for _, target in ipairs(S.targets) do
    push_front('evaluate', target, lo, hi)
  end
end

local function propagate()
  while head <= tail and budget > 0 do
    local job = jobs[head]
    jobs[head] = nil
    head = head + 1
    follow[job[1]](unpack(job, 2))
  end
end

-- --------------------------------------------------------------------------------------------------- chunks

-- The chunk without its holes.
local function pieces_of(chunk)
  local out, at = {}, chunk.lo
  for _, hole in ipairs(chunk.holes or {}) do
    if hole[1] > at then out[#out + 1] = { at, hole[1] } end
    at = hole[2]
  end
  if at < chunk.hi then out[#out + 1] = { at, chunk.hi } end
  return out
end

local function move_chunk(chunk, state)
  for _, piece in ipairs(pieces_of(chunk)) do
    move(chunk.i, piece[1], piece[2], state)
  end
end

-- Members of `queue` and `deferred`: instance, order, chunk.
local function queue_member(chunk)
  local order = call('HINCRBY', KEY.meta, 'num_queued', 1)
  return string.format('%06d:%012.0f:%s', chunk.i, order, cjson.encode(chunk))
end

local function enqueue(chunk)
  call('ZADD', KEY.queue, 0, queue_member(chunk))
  local D = touch(chunk.i)
  D.requeued = D.requeued + 1
end

local function requeue(chunk)
  move_chunk(chunk, QUEUED)
  enqueue(chunk)
end

local function defer(chunk, not_before)
  move_chunk(chunk, QUEUED)
  call('ZADD', KEY.deferred, not_before, queue_member(chunk))
end

-- Deferred chunks whose time has come join the queue.
local function promote()
  local due = call('ZRANGEBYSCORE', KEY.deferred, '-inf', now, 'LIMIT', 0, PAGE)
  for _, member in ipairs(due) do
    call('ZREM', KEY.deferred, member)
    enqueue(cjson.decode(string.sub(member, 21)))
  end
end

local function first_requeued(i, pop)
  local prefix = string.format('[%06d', i)
  local member = call('ZRANGEBYLEX', KEY.queue, prefix .. ':', prefix .. ';', 'LIMIT', 0, 1)[1]
  if pop then
    call('ZREM', KEY.queue, member)
    local D = touch(i)
    D.requeued = D.requeued - 1
  end
  return cjson.decode(string.sub(member, 21))
end

-- Tasks of the next chunk: what takes the target time, less when few are left.
local function next_size(i, workers)
  local D = inst(i)
  local share = math.ceil((D.ready + D.waiting) / (2 * workers))
  return math.max(1, math.min(D.size, share))
end

-- How many tickets instance i lacks.
local function num_wanted(i)
  local D = inst(i)
  if not has_work(D) then return 0 end
  local to_come = math.ceil(D.ready / next_size(i, M.ticket_workers)) + D.requeued
  return math.max(0, math.min(M.ticket_limit, to_come) - D.tickets)
end

local function learn(i, num_tasks, busy_s, target_s)
  local S, D = spec(i), touch(i)
  D.busy_s = D.busy_s * DECAY + busy_s
  D.learned = D.learned * DECAY + num_tasks
  local ideal = math.max(1, math.min(S.max_size, math.floor(target_s / math.max(D.busy_s / D.learned, 1e-9))))
  D.size = ideal <= D.size and ideal or math.max(D.size, math.min(ideal, GROWTH * num_tasks))
end

-- Rows of the chunk's shards whose task did not end ok.
local function absent_rows(chunk)
  local S, out = spec(chunk.i), {}
  for _, block in ipairs(S.block) do
    local a, b = rows_of(block, chunk.lo * S.rows, chunk.hi * S.rows)
    while a < b do
      local _, upto, state = run_at(block[1], a, b)
      if state == FAILED or state == SOFT_FAILED or state == SKIPPED then
        local last = out[#out]
        if last and last[2] == block[2] + a then last[2] = block[2] + upto
        else out[#out + 1] = { block[2] + a, block[2] + upto } end
      end
      a = upto
    end
  end
  return #out > 0 and out or nil
end

-- The next chunk from the ready tasks, in order; scattered tasks share a chunk with holes.
local function cut(i, workers)
  local S, size = spec(i), next_size(i, workers)
  local reach, num, pieces = math.max(MAX_SPARSE_SPAN, 4 * size), 0, {}
  local at, stop_at = S.base, string.format('(%.0f', S.base + S.n)
  repeat
    local page = call('ZRANGEBYSCORE', KEY.ready, at, stop_at, 'LIMIT', 0, 100)
    for _, member in ipairs(page) do
      local run = parse_run(member)
      at = run[2]
      local a = run[1] - S.base
      if #pieces > 0 and a - pieces[1][1] >= reach then num = size end
      if num >= size then break end
      local b = math.min(run[2] - S.base, a + size - num)
      pieces[#pieces + 1] = { a, b }
      num = num + b - a
    end
  until num >= size or #page < 100
  local chunk = { i = i, lo = pieces[1][1], hi = pieces[#pieces][2], attempt = M.first_attempt }
  for k = 2, #pieces do
    chunk.holes = chunk.holes or {}
    chunk.holes[k - 1] = { pieces[k - 1][2], pieces[k][1] }
  end
  if S.kind == 'aggregate' then chunk.absent_rows = absent_rows(chunk) end
  return chunk
end

local function hold(lease, entry, lease_s)
  call('HSET', KEY.leases, lease, cjson.encode(entry))
  call('ZADD', KEY.expiry, now + lease_s, lease)
end

-- A report about a lease was accepted. Its repetition, after a lost reply, is known for what it is.
local function remember(lease, op)
  call('ZADD', KEY.settled, now, lease .. ':' .. op)
  call('ZREMRANGEBYSCORE', KEY.settled, '-inf', now - SETTLED_S)
  call('ZREMRANGEBYRANK', KEY.settled, 0, -MAX_SETTLED - 1)
end

local function is_repeated(lease, op)
  return call('ZSCORE', KEY.settled, lease .. ':' .. op) ~= false
end

local function count(name, num)
  call('HINCRBY', KEY.counters, name, num)
end

-- ------------------------------------------------------------------------------------------ begin and finish

-- Start an operation that writes: the reply that ends it at once, or nil. The first write is one that a full server
-- refuses; after it Redis refuses none of this call, so that either everything happens or nothing.
local function begin()
  local reason = absence()
  if reason then return cjson.encode({ gone = reason }) end
  local run_id = server_run_id()
  if is_stale(run_id) then return cjson.encode({ gone = '', restarted = true }) end
  M.revision = call('HINCRBY', KEY.meta, 'revision', 1)
  if run_id ~= '' and run_id ~= M.run_id then call('HSET', KEY.meta, 'run_id', run_id) end
  local left = call('LRANGE', KEY.pending, 0, -1)
  if #left > 0 then
    call('DEL', KEY.pending)
    for _, job in ipairs(left) do
      tail = tail + 1
      jobs[tail] = cjson.decode(job)
    end
    propagate()
  end
  return nil
end

-- Keep instance i in the index when it belongs there, and out of it when not.
local function index(i, name, belongs)
  local D = inst(i)
  if belongs == D[name] then return end
  D[name] = belongs
  if belongs then call('ZADD', KEY[name], spec(i).rank, i) else call('ZREM', KEY[name], i) end
end

local function save()
  for i in pairs(dirty_insts) do
    index(i, 'active', has_work(inst(i)))
    index(i, 'wanting', num_wanted(i) > 0)
    call('HSET', KEY.inst, i, cjson.encode(inst(i)))
  end
  for id in pairs(dirty_groups) do
    call('HSET', KEY.inst, id, cjson.encode(groups[id]))
  end
  for _, verdict in ipairs(verdicts) do
    local order = call('HINCRBY', KEY.meta, 'num_verdicts', 1)
    verdict.id = string.format('%s.%.0f', M.epoch, order)
    call('ZADD', KEY.verdicts, order, cjson.encode(verdict))
  end
  for k = head, tail do
    call('RPUSH', KEY.pending, cjson.encode(jobs[k]))
  end
end

-- A complete study needs no progress any more; it stays a while for whoever looks.
local function retire()
  for _, key in pairs(KEY) do
    call('EXPIRE', key, KEEP_COMPLETE_S)
  end
end

local function finish(reply)
  save()
  if M.num_open == 0 then retire() end
  reply.revision, reply.epoch = M.revision, M.epoch
  if head <= tail then reply.more = true end
  return cjson.encode(reply)
end
