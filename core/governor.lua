-- The governor: rate limits, priority and fairness of one provider, decided in one step. Specification: docs/governor.md.
--
-- KEYS[1] state    hash        global level, waiting mark, block, ring cursors, circuit
-- KEYS[2] tenants  hash        tenant id -> "tokens:at:mark"
-- KEYS[3] flights  sorted set  grant id -> time at which it is forgotten
-- ARGV[1] "acquire" | "late" | "settle"
-- ARGV[2] arguments as JSON (units: seconds, tokens)
--
-- Times are seconds since the epoch from Redis' own clock. Replies are arrays; times in replies are microseconds.
-- Comparisons allow for HALF of the last decimal that is kept: without it a level of 1 that is stored as 0.999999(7) or
-- computed as such would cost its caller a second call.

local state_key, tenants_key, flights_key = KEYS[1], KEYS[2], KEYS[3]
local args = cjson.decode(ARGV[2])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local HALF = 0.0000005
local TENANT_MARK_SLACK = 1
-- No mark reaches further ahead: who waits longer asks again by then, perhaps with another refill.
local MARK_HORIZON = 2
-- Seconds that an answer tells to wait at most: with an absurd refill the true number is not one that Redis can return.
local LONGEST_WAIT = 86400

local state = {}
do
  local flat = redis.call('HGETALL', state_key)
  for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
end
local written = {}

local function number(field) return tonumber(state[field] or '') or 0 end
local function text(field) return state[field] or '' end
local function fixed(value) return string.format('%.6f', value) end
local now_text = fixed(now) -- formatting is what costs most here: once, not once a tenant
local function put(field, value)
  state[field] = value
  written[#written + 1] = field
  written[#written + 1] = value
end
local function put_number(field, value) put(field, fixed(value)) end
local function flush()
  put_number('seen', now)
  redis.call('HSET', state_key, unpack(written))
end

-- The clock went back (a failover to a host that is behind, a correction): all times go back with it. Levels would not
-- grow otherwise, and blocks not end, until it has caught up.
if number('seen') > now then
  local back = number('seen') - now
  for _, field in ipairs({
    'at', 'q_at', 'r_at', 'mark', 'q_mark', 'blocked', 'permit_until', 'probe_at', 'opened', 'refused_t_at', 'refused_m_at',
    'refusing_from',
  }) do
    if number(field) > 0 then put_number(field, number(field) - back) end
  end
end

-- Rounded up: who waits for as long as it was told finds what it waited for.
local function micros(seconds) return math.ceil(seconds * 1000000) end

-- A bucket is [capacity, refill per second, reserve].
local function level(tokens, at, capacity, refill)
  -- In whole microseconds: the difference of two times of this size is off by a quarter of one, which a fast refill
  -- would make so many tokens that who waited exactly as long as it was told would be sent away again.
  local elapsed = math.floor(math.max(0, now - at) * 1000000 + 0.5) / 1000000
  return math.min(capacity, tokens + elapsed * refill)
end

local function global_level(bucket)
  if not state.tokens then -- stored at once: it has to grow from here even if this call is refused for the reserve
    put_number('tokens', math.min(1, bucket[1]))
    put_number('at', now)
  end
  return level(number('tokens'), number('at'), bucket[1], bucket[2])
end

-- The quota ('q') and the retry budget ('r'): full until something was taken.
local function level_of(kind, bucket)
  if not state[kind .. '_tokens'] then return bucket[1] end
  return level(number(kind .. '_tokens'), number(kind .. '_at'), bucket[1], bucket[2])
end

local function put_level(kind, tokens)
  put_number(kind .. '_tokens', tokens)
  put_number(kind .. '_at', now)
end

-- A bucket that was not given is cjson.null, which is true in Lua.
local function given(bucket) return bucket ~= cjson.null and bucket or nil end

local function whole(tokens) return math.max(0, math.floor(tokens + HALF)) end

-- Level, mark, and "tokens:at" as stored: a mark is written with that unchanged, since writing a level for every refusal
-- would round a slow refill away.
local function tenant_of(stored, capacity, refill)
  if not stored then return capacity, 0, fixed(capacity) .. ':' .. now_text end
  local tokens, at, mark = string.match(stored, '^([^:]*):([^:]*):([^:]*)$')
  if tonumber(at) > now then at = now_text end -- the clock went back
  mark = math.min(tonumber(mark), now + MARK_HORIZON + TENANT_MARK_SLACK)
  return level(tonumber(tokens), tonumber(at), capacity, refill), mark, tokens .. ':' .. at
end

redis.call('ZREMRANGEBYSCORE', flights_key, '-inf', now_text)

local REFUSALS = {transactional = 'refused_t', marketing = 'refused_m'}

-- Of both rails, if `rail` is ''.
local function forget_refusals(rail)
  for name, field in pairs(REFUSALS) do
    if (rail == '' or rail == name) and text(field) ~= '' then
      put(field, '')
      put(field .. '_at', '0')
    end
  end
end

-- `rail`: whose circuit it was, or will be.
local function clear_circuit(rail)
  for _, field in ipairs({'circuit', 'circuit_rail', 'run', 'permit', 'probe_next', 'probe_last'}) do put(field, '') end
  for _, field in ipairs({'permit_until', 'probe_at', 'probe_n', 'opened', 'refusing_from'}) do put(field, '0') end
  forget_refusals(rail)
end

local function close_circuit() clear_circuit(text('circuit_rail')) end

-- For `rail` alone, unless it is ''.
local function open_circuit(reason, rail)
  clear_circuit(rail)
  put('circuit', reason)
  put('circuit_rail', rail)
  put_number('opened', now)
  put_number('probe_at', now + 0.5 + args.jitter / 2)
end

-- The reason for which the circuit is open for this caller's rail, or ''.
local function circuit()
  local rail = text('circuit_rail')
  return (rail == '' or rail == args.rail) and text('circuit') or ''
end

---------------------------------------------------------------------------------------------------------------- acquire

-- Tenants of this call, each once: level, mark, what they may still take.
local function load_tenants(wants, marketing)
  local ids, seen = {}, {}
  for _, want in ipairs(wants) do
    if not seen[want[1]] then
      seen[want[1]] = want
      ids[#ids + 1] = string.format('%.0f', want[1])
    end
  end
  local stored = redis.call('HMGET', tenants_key, unpack(ids))
  local tenants = {}
  for i, id in ipairs(ids) do
    local want = seen[tonumber(id)]
    local tokens, mark, kept = tenant_of(stored[i], want[4], want[5])
    local reserve = marketing and want[6] or 0
    local free = whole(tokens - reserve)
    local starved = 0
    if free < 1 then starved = (1 + reserve - tokens) / want[5] end
    if marketing and mark > now then
      free = 0
      starved = math.max(starved, mark - now)
    end
    tenants[want[1]] = {
      id = id, tokens = tokens, mark = mark, kept = kept, refill = want[5], free = free, starved = starved, taken = 0,
      unmet = false, touched = false,
    }
  end
  return tenants
end

-- Max-min split of `room` among one priority's wants. Returns what was given and the new cursor (nil: nothing given).
local function split(wants, room, cursor)
  table.sort(wants, function(a, b)
    local a_after, b_after = a.tenant > cursor, b.tenant > cursor
    if a_after ~= b_after then return a_after end
    return a.tenant < b.tenant
  end)
  local by_demand = {}
  for position, want in ipairs(wants) do
    want.position = position
    if want.demand > 0 then by_demand[#by_demand + 1] = want end
  end
  table.sort(by_demand, function(a, b)
    if a.demand ~= b.demand then return a.demand < b.demand end
    return a.position < b.position
  end)
  local left, given, extra_from = #by_demand, 0, nil
  for i, want in ipairs(by_demand) do
    local share = math.floor((room - given) / left)
    if want.demand > share then
      for j = i, #by_demand do by_demand[j].share = share end
      given = given + share * left
      extra_from = share
      break
    end
    want.share = want.demand
    given = given + want.demand
    left = left - 1
  end
  local last, last_extra
  for _, want in ipairs(wants) do
    if extra_from and given < room and want.demand > extra_from then
      want.share = want.share + 1
      given = given + 1
      last_extra = want.tenant
    end
    if want.share > 0 then last = want.tenant end
  end
  return given, last_extra or last
end

local function acquire()
  local marketing = args.rail == 'marketing'
  local due = args.kind == 'due'
  local wants = due and args.wants or {}
  local epoch = number('epoch')
  local shares, starved, priorities, cursors = {}, {}, {}, {}
  for i, want in ipairs(wants) do
    shares[i], starved[i] = 0, 0
    if not cursors[want[2]] then
      priorities[#priorities + 1] = want[2]
      cursors[want[2]] = number('cursor:' .. want[2])
    end
  end
  table.sort(priorities)
  local function cursor_list()
    local list = {}
    for i, priority in ipairs(priorities) do list[i] = {priority, cursors[priority]} end
    return list
  end
  local function wait(seconds, reason)
    flush()
    return {0, now_us, math.max(1, micros(math.min(seconds, LONGEST_WAIT))), reason, epoch, 0, shares, starved, cursor_list()}
  end

  -- 1 circuit
  local probe = circuit() ~= ''
  if probe then
    if number('permit_until') > now then return wait(number('permit_until') - now, 'circuit') end
    local preferred = text('probe_next') ~= '' and text('probe_next') or 'due'
    local from = number('probe_at')
    if (due and marketing and text('circuit_rail') == '') or (not due and args.batch == text('probe_last')) then
      from = from + 2 * args.grace
    elseif args.kind ~= preferred then
      from = from + args.grace
    end
    if now < from then return wait(from - now, 'circuit') end
  end

  -- 2 block, 3 waiting mark
  if number('blocked') > now then
    -- The one token that is there when the block ends is the transactional rail's, if it has asked.
    if due and not marketing then put_number('mark', math.max(number('mark'), number('blocked') + args.slack)) end
    return wait(number('blocked') - now, text('blocked_why'))
  end
  if marketing and number('mark') > now then return wait(number('mark') - now, 'transactional_waits') end

  -- 4 quota
  local room, quota = probe and args.probe_batch or args.max_batch, due and given(args.quota) or nil
  local quota_tokens
  if quota then
    local reserve = marketing and quota[3] or 0
    quota_tokens = level_of('q', quota)
    local free = whole(quota_tokens - reserve)
    if marketing and number('q_mark') > now then return wait(number('q_mark') - now, 'quota') end
    if free < 1 then
      local seconds = (1 + reserve - quota_tokens) / quota[2]
      -- What comes back first is the transactional rail's, if it has asked, also without a reserve.
      if not marketing then put_number('q_mark', now + math.min(MARK_HORIZON, seconds) + args.slack) end
      return wait(seconds, 'quota')
    end
    room = math.min(room, free)
  end

  -- 5 retry budget. A probe has a pace of its own.
  local retry, retry_tokens = not probe and given(args.retry) or nil, nil
  if retry then
    local reserve = marketing and retry[3] or 0
    retry_tokens = level_of('r', retry)
    if whole(retry_tokens - reserve) < 1 then return wait((1 + reserve - retry_tokens) / retry[2], 'retries') end
  end

  local request = args.request
  local function until_token()
    local missing = 1 + (marketing and request[3] or 0) - global_level(request)
    return missing > HALF and missing / request[2] or 0
  end
  -- 7 for marketing: a refused call needs no look at its tenants, nothing of theirs would change.
  if marketing and until_token() > 0 then return wait(until_token(), 'global') end

  -- 6 tenants
  local tenants = due and load_tenants(wants, marketing) or {}
  local by_priority, possible, shortest = {}, 0, nil
  for _, priority in ipairs(priorities) do by_priority[priority] = {} end
  for i, want in ipairs(wants) do
    local tenant = tenants[want[1]]
    if tenant.free < 1 then
      starved[i] = math.max(1, micros(math.min(tenant.starved, LONGEST_WAIT)))
      shortest = math.min(shortest or tenant.starved, tenant.starved)
    end
    by_priority[want[2]][#by_priority[want[2]] + 1] = {index = i, tenant = want[1], want = want[3], share = 0}
  end
  local unpromised = {}
  for id, tenant in pairs(tenants) do unpromised[id] = tenant.free end
  for _, priority in ipairs(priorities) do
    for _, want in ipairs(by_priority[priority]) do
      local tenant = tenants[want.tenant]
      want.demand = math.min(want.want, unpromised[want.tenant])
      unpromised[want.tenant] = unpromised[want.tenant] - want.demand
      possible = possible + want.demand
      if not marketing and want.demand < want.want then
        tenant.mark = now + math.min(MARK_HORIZON, math.max(0, (1 - tenant.tokens) / tenant.refill)) + TENANT_MARK_SLACK
        tenant.touched = true
      end
    end
  end
  local function store_tenants()
    local fields = {}
    for _, tenant in pairs(tenants) do
      if tenant.touched then
        fields[#fields + 1] = tenant.id
        local levels = tenant.taken > 0 and fixed(tenant.tokens - tenant.taken) .. ':' .. now_text or tenant.kept
        fields[#fields + 1] = levels .. ':' .. (tenant.mark == 0 and '0' or fixed(tenant.mark))
      end
    end
    if #fields > 0 then redis.call('HSET', tenants_key, unpack(fields)) end
  end
  if due and possible == 0 then
    store_tenants()
    return wait(shortest or 1, 'tenant')
  end

  -- 7 global token
  local seconds = until_token()
  if seconds > 0 then
    put_number('mark', now + math.min(MARK_HORIZON, seconds) + args.slack)
    store_tenants()
    return wait(seconds, 'global')
  end

  -- 8 split
  local total = 0
  for _, priority in ipairs(priorities) do
    if total < room then
      local given, cursor = split(by_priority[priority], room - total, cursors[priority])
      total = total + given
      if cursor then
        cursors[priority] = cursor
        put('cursor:' .. priority, string.format('%.0f', cursor))
      end
    end
  end
  for _, priority in ipairs(priorities) do
    for _, want in ipairs(by_priority[priority]) do
      local tenant = tenants[want.tenant]
      shares[want.index] = want.share
      if want.share > 0 then
        tenant.taken = tenant.taken + want.share
        tenant.touched = true
      end
      if want.share < want.want then tenant.unmet = true end
    end
  end
  for _, tenant in pairs(tenants) do
    if not marketing and not tenant.unmet and tenant.mark > 0 then
      tenant.mark = 0
      tenant.touched = true
    end
  end

  -- 9 grant
  put_number('tokens', global_level(request) - 1)
  put_number('at', now)
  put('spent', string.format('%.0f', number('spent') + 1))
  if quota then
    put_level('q', quota_tokens - total)
    if not marketing and number('q_mark') > 0 then put('q_mark', '0') end
  end
  if retry then put_level('r', retry_tokens - 1) end
  if not marketing and number('mark') > 0 then put('mark', '0') end
  store_tenants()
  redis.call('ZADD', flights_key, fixed(now + args.flight_ttl), args.grant)
  if probe then
    put('permit', args.grant)
    put_number('permit_until', now + args.permit_ttl)
    put('probe_last', args.batch)
    put('probe_next', due and 'replay' or 'due')
  end
  flush()
  return {1, now_us, 0, '', epoch, probe and 1 or 0, shares, starved, cursor_list()}
end

----------------------------------------------------------------------------------------------------------------- settle

local function give_back(request, quota)
  if args.unused then
    put('spent', string.format('%.0f', number('spent') - 1))
    if args.epoch == number('epoch') then
      put_number('tokens', math.min(request[1], global_level(request) + 1))
      put_number('at', now)
    end
    local retry = given(args.retry)
    if retry then put_level('r', math.min(retry[1], level_of('r', retry) + 1)) end
  end
  if quota and args.quota_back > 0 then put_level('q', math.min(quota[1], level_of('q', quota) + args.quota_back)) end
  if #args.back == 0 then return end
  local ids, levels, fields = {}, {}, {}
  for i, entry in ipairs(args.back) do ids[i] = string.format('%.0f', entry[1]) end
  for i, stored in ipairs(redis.call('HMGET', tenants_key, unpack(ids))) do
    if stored then -- a missing tenant is full already; one with two wants is here twice
      local tokens, rest = string.match(stored, '^([^:]*)(:.*)$')
      levels[ids[i]] = math.min(args.back[i][3], (levels[ids[i]] or tonumber(tokens)) + args.back[i][2])
      fields[#fields + 1] = ids[i]
      fields[#fields + 1] = fixed(levels[ids[i]]) .. rest
    end
  end
  if #fields > 0 then redis.call('HSET', tenants_key, unpack(fields)) end
end

-- How many different batches failed in a row. Counted while the circuit is closed only: a long outage adds nothing.
local function count_failure()
  local batches, known = 0, false
  for id in string.gmatch(text('run'), '[^,]+') do
    batches = batches + 1
    known = known or id == args.batch
  end
  if known then return batches end
  put('run', batches == 0 and args.batch or text('run') .. ',' .. args.batch)
  return batches + 1
end

-- How many refusals in a row, on this rail and with this code, cannot have one cause: of each only the names are known among
-- which it is, and they have none in common. A refusal of some of the names of an earlier one says more, and takes its place.
local function count_refusal(refusal)
  local field, code, names = REFUSALS[args.rail], refusal[1], refusal[2]
  local kept, first = {}, nil
  for word in string.gmatch(text(field), '[^;]+') do
    if first then kept[#kept + 1] = word end
    first = first or word
  end
  if first ~= code then
    kept = {}
    put_number(field .. '_at', now)
  end
  local among, apart = {}, true
  for _, name in ipairs(names) do among[name] = true end
  for i, set in ipairs(kept) do
    local common = 0
    for name in string.gmatch(set, '[^,]+') do common = common + (among[name] and 1 or 0) end
    if common > 0 then apart = false end
    if common == #names then kept[i] = table.concat(names, ',') end
  end
  if apart then kept[#kept + 1] = table.concat(names, ',') end
  put(field, code .. ';' .. table.concat(kept, ';'))
  return #kept
end

local function settle()
  local request = args.request
  local quota = given(args.quota)
  local event = args.event
  local in_flight = redis.call('ZREM', flights_key, args.grant)
  local before, before_rail = text('circuit'), text('circuit_rail')
  local was_open = before ~= ''
  local was_wide = was_open and before_rail == ''
  local was_permit = text('permit') == args.grant
  if in_flight == 1 then give_back(request, quota) end

  local since = number('refusing_from')
  if event == 'accepted' then
    put('strikes', '0')
    put('run', '')
    forget_refusals(args.rail)
    if circuit() ~= '' then close_circuit() end
  elseif event == 'answered' then
    put('run', '')
    if before == 'unreachable' or before == 'credential' then close_circuit() end
  elseif event == 'refused' or event == 'forbidden' then
    if event == 'refused' then
      put('run', '')
      if before == 'unreachable' then close_circuit() end
    end
    local refusal = given(args.refused)
    if refusal and circuit() ~= 'refusing' and count_refusal(refusal) >= 3 then
      local from = number(REFUSALS[args.rail] .. '_at')
      local wide = args.rail == 'transactional' or circuit() ~= ''
      open_circuit('refusing', wide and '' or args.rail)
      put_number('refusing_from', from)
    end
  elseif event == 'rate_limited' or event == 'quota' then
    -- Requests that were under way together are answered alike: all of them are one strike.
    local strikes = math.max(1, number('strikes') + (args.epoch == number('epoch') and 1 or 0))
    local pause = args.retry_after
    if pause == cjson.null then pause = math.min(60, 2 ^ math.min(10, strikes - 1)) * (1 + args.jitter) / 2 end
    pause = math.min(86400, math.max(1, pause))
    put('strikes', string.format('%.0f', strikes))
    if now + pause > number('blocked') then
      put_number('blocked', now + pause)
      put('blocked_why', event)
    end
    put('tokens', '0')
    put_number('at', number('blocked') - 1 / request[2] - HALF) -- rounded down: the token is there in time
    put('epoch', string.format('%.0f', number('epoch') + 1))
    put('run', '')
    if before == 'unreachable' then close_circuit() end
  elseif event == 'failed' then
    if not was_wide and count_failure() >= 3 then open_circuit('unreachable', '') end
  elseif event == 'credential' then
    if not was_wide then open_circuit('credential', '') end
  end

  if was_permit and text('permit') ~= '' then
    put('permit', '')
    put('permit_until', '0')
    if event ~= 'none' then
      local n = number('probe_n') + 1
      put('probe_n', string.format('%.0f', n))
      -- What refuses some is quick to answer for it, and others' codes may be in order: they must not wait for long.
      local longest = text('circuit') == 'refusing' and 2 or 15
      put_number('probe_at', now + math.min(longest, 2 ^ math.min(10, n)) * (1 + args.jitter) / 2)
    end
  end

  if args.remaining ~= cjson.null and event ~= 'rate_limited' and event ~= 'quota' then
    local free = math.max(0, args.remaining - redis.call('ZCARD', flights_key))
    local have = global_level(request)
    if whole(have) > free then
      put_number('tokens', free)
      put_number('at', now)
      put('epoch', string.format('%.0f', number('epoch') + 1))
    elseif have > free then
      -- A part of a token cannot be spent in the window that is used up; taking all of it away would waste the limit. The
      -- next token comes `slack` later, so that requests that were held up on their way still fall into their window.
      put_number('tokens', math.max(free, have - args.slack * request[2]))
      put_number('at', now)
    end
  end

  flush()
  local is_open = text('circuit') ~= ''
  local opened = is_open and (text('circuit') ~= before or text('circuit_rail') ~= before_rail)
  local closed = was_open and not is_open
  return {
    in_flight, now_us, circuit(), opened and 1 or 0, closed and 1 or 0, micros(math.max(0, number('blocked') - now)),
    closed and before == 'refusing' and math.max(1, micros(now - since)) or 0,
  }
end

------------------------------------------------------------------------------------------------------------------- late

-- A request leaves later than its grant. The provider counts when it arrives: what comes after it comes later as well, so
-- that the distance that the refill stands for is kept on the wire.
local function late()
  local request = args.request
  put_number('tokens', math.max(-1, global_level(request) - args.seconds * request[2]))
  put_number('at', now)
  flush()
  return {1, micros(now)}
end

if ARGV[1] == 'acquire' then return acquire() end
if ARGV[1] == 'late' then return late() end
if ARGV[1] == 'settle' then return settle() end
return redis.error_reply('governor: unknown operation ' .. tostring(ARGV[1]))
