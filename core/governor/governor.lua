-- The governor: rate limits, priority and fairness of one provider, decided in one step. Specification: docs/governor.md.
--
-- KEYS[1] state    hash        global level, waiting mark, block, ring cursors, circuit
-- KEYS[2] tenants  hash        tenant id, or tenant id:rail -> "tokens:at:mark"
-- KEYS[3] flights  sorted set  grant id -> time at which it is forgotten
-- ARGV[1] "acquire" | "leaves" | "late" | "settle"
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
-- What the refill brings in so many seconds is credit for requests that leave late: 0.02 n of a bucket for n/s.
local LATENESS_SECONDS = 0.0204
-- What comes back to a tenant's bucket in so many seconds is worth a request.
local WORTH_SECONDS = 1
-- No mark reaches further ahead: who waits longer asks again by then, perhaps with another refill.
local MARK_HORIZON = 2
-- Seconds that an answer tells to wait at most: with an absurd refill the true number is not one that Redis can return.
local LONGEST_WAIT = 86400
-- So many different causes make it the provider's trouble; so many failed batches do, whatever they have in common.
local WITNESSES = 3
local FAILED_BATCHES = 8
-- Seconds from the last probe to that of a stranger: of a tenant that none of the failures may be about.
local STRANGER_SECONDS = 1

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
    'at', 'q_at', 'r_at', 'm_at', 'mark', 'q_mark', 'blocked', 'permit_until', 'probe_at', 'probed', 'opened',
    'refused_t_at', 'refused_m_at', 'refusing_from',
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

-- The quota ('q'), the retry budget ('r') and what of it is marketing's own ('m'): full until something was taken.
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

-- Level, mark, "tokens:at" as stored (a mark is written with that unchanged, since writing a level for every refusal would
-- round a slow refill away), and whether its time had to be set back: that has to be written, or it would not grow.
local function tenant_of(stored, capacity, refill)
  if not stored then return capacity, 0, fixed(capacity) .. ':' .. now_text, false end
  local tokens, at, mark = string.match(stored, '^([^:]*):([^:]*):([^:]*)$')
  local ahead = tonumber(at) > now -- the clock went back
  if ahead then at = now_text end
  mark = math.min(tonumber(mark), now + MARK_HORIZON + TENANT_MARK_SLACK)
  return level(tonumber(tokens), tonumber(at), capacity, refill), mark, tokens .. ':' .. at, ahead
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

local function forget_failures()
  put('run', '')
  put('run_for', '')
end

-- `rail`: whose circuit it was, or will be.
local function clear_circuit(rail)
  for _, field in ipairs({'circuit', 'circuit_rail', 'permit', 'permit_left', 'probe_next', 'probe_last'}) do put(field, '') end
  forget_failures()
  for _, field in ipairs({'permit_until', 'probe_at', 'probed', 'probe_n', 'opened', 'refusing_from'}) do put(field, '0') end
  forget_refusals(rail)
end

local function close_circuit() clear_circuit(text('circuit_rail')) end

-- For `rail` alone, unless it is ''.
-- That everybody was refused is remembered until it closes, whatever else is found out meanwhile.
local function open_circuit(reason, rail)
  local refusing_from = text('refusing_from')
  clear_circuit(rail)
  put('refusing_from', refusing_from == '' and '0' or refusing_from)
  put('circuit', reason)
  put('circuit_rail', rail)
  put_number('opened', now)
  put_number('probed', now)
  put_number('probe_at', now + 0.5 + args.jitter / 2)
end

-- The reason for which the circuit is open for this caller's rail, or ''.
local function circuit()
  local rail = text('circuit_rail')
  return (rail == '' or rail == args.rail) and text('circuit') or ''
end

local function words(list, separator)
  local found = {}
  for word in string.gmatch(list, '[^' .. separator .. ']+') do found[#found + 1] = word end
  return found
end

-- Seconds from the end of the n-th probe without success to the next one, `jitter` between 0 and 1.
local function until_next_probe(n, jitter)
  -- What refuses some is quick to answer for it, and others' codes may be in order: they must not wait for long.
  return math.min(text('circuit') == 'refusing' and 2 or 15, 2 ^ math.min(10, n)) * (1 + jitter) / 2
end

---------------------------------------------------------------------------------------------------------------- acquire

local marketing = args.rail == 'marketing'
local due = args.kind == 'due'

-- What a bucket keeps from this caller.
local function kept(bucket) return marketing and bucket[3] or 0 end

-- Seconds until `tokens` are `needed`: 0 if they are.
local function until_there(tokens, needed, refill)
  local missing = needed - tokens
  return missing > HALF and missing / refill or 0
end

local function id_of(tenant) return string.format('%.0f', tenant) end

-- 1: the names of those whose contents may have opened the circuit; nil: nobody's.
local function suspects_now()
  if text('circuit') ~= 'unreachable' or text('run_for') == '' then return nil end
  local suspects = {}
  for _, name in ipairs(words(text('run_for'), ',;')) do suspects[name] = true end
  return suspects
end

-- 1: of `seconds` until this caller's probe, how many there are for it, why, and whose wants are left out then. Strangers go before
-- suspects, and do not wait for as long.
local function until_stranger_s_probe(wants, seconds)
  local suspects = due and suspects_now()
  if not suspects then return seconds, 'circuit', {} end
  for _, want in ipairs(wants) do
    if not suspects[id_of(want[1])] then
      local soon = number('probed') + STRANGER_SECONDS + (marketing and 2 * args.grace or 0) - now
      return math.min(soon, seconds), 'circuit', suspects
    end
  end
  return seconds, 'suspected', {}
end

-- 1: how long the open circuit keeps this caller from probing, why, and whose wants are left out then.
local function until_probe(wants)
  if number('permit_until') > now then return number('permit_until') - now, 'circuit', {} end
  local preferred = text('probe_next') ~= '' and text('probe_next') or 'due'
  local from = number('probe_at')
  if text('permit_left') ~= '' then -- never settled: a probe without success, which ended when its permit did
    from = math.max(from, number('permit_until') + until_next_probe(number('probe_n') + 1, 0.5))
  end
  if (due and marketing and text('circuit_rail') == '') or (not due and args.batch == text('probe_last')) then
    from = from + 2 * args.grace
  elseif args.kind ~= preferred then
    from = from + args.grace
  end
  return until_stranger_s_probe(wants, from - now)
end

-- 4: how long the quota has nothing for this caller.
local function until_quota(quota)
  if marketing and number('q_mark') > now then return number('q_mark') - now end
  local seconds = until_there(level_of('q', quota), 1 + kept(quota), quota[2])
  -- What comes back first is the transactional rail's, if it has asked, also without a reserve.
  if seconds > 0 and not marketing then put_number('q_mark', now + math.min(MARK_HORIZON, seconds) + args.slack) end
  return seconds
end

-- 5: how long the retry budget has nothing for this caller. Marketing's own part of it is there whatever the other rail takes: it
-- may leave the budget in debt, which that rail waits off.
local function until_retry(retry)
  local seconds = until_there(level_of('r', retry), 1 + kept(retry), retry[2])
  if not marketing then return seconds end
  return math.min(seconds, until_there(level_of('m', args.trickle), 1, args.trickle[2]))
end

-- 9: what was taken from it.
local function take_retry(retry)
  put_level('r', level_of('r', retry) - 1)
  if marketing then put_level('m', math.max(0, level_of('m', args.trickle) - 1)) end
end

-- 7: how long there is no request token for this caller.
local function until_token(request)
  return until_there(global_level(request), 1 + kept(request), request[2])
end

-- 9: a full bucket has been idle, and what it holds for requests that leave late is no credit for that: else the first
-- requests after a pause would be one more than the limit allows in a second.
local function level_at_grant(request)
  local tokens = global_level(request)
  if tokens < request[1] - HALF then return tokens end
  return math.max(1, request[1] - LATENESS_SECONDS * request[2])
end

-- A tenant's level: one for both rails, or one for the rail that its bucket names.
local function level_field(tenant, rail)
  return rail == '' and id_of(tenant) or id_of(tenant) .. ':' .. rail
end

-- Tenants of this call, each once: level, mark, what they may take. `unpromised`: what no want of theirs has been promised.
local function load_tenants(wants)
  local fields, first = {}, {}
  for _, want in ipairs(wants) do
    if not first[want[1]] then
      first[want[1]] = want
      fields[#fields + 1] = {want[1], level_field(want[1], want[7])}
    end
  end
  local names = {}
  for i, field in ipairs(fields) do names[i] = field[2] end
  local stored = redis.call('HMGET', tenants_key, unpack(names))
  local tenants = {}
  for i, field in ipairs(fields) do
    local want = first[field[1]]
    local tokens, mark, as_stored, set_back = tenant_of(stored[i], want[4], want[5])
    local reserve = kept({want[4], want[5], want[6]})
    local free = whole(tokens - reserve)
    local starved = free < 1 and (1 + reserve - tokens) / want[5] or 0
    if marketing and mark > now then
      free = 0
      starved = math.max(starved, mark - now)
    end
    tenants[field[1]] = {
      field = field[2], tokens = tokens, mark = mark, as_stored = as_stored, capacity = want[4], refill = want[5],
      reserve = reserve, shared = want[7] == '', free = free, starved = starved, unpromised = free, taken = 0,
      unmet = false, touched = set_back,
    }
  end
  return tenants
end

local function store_tenants(tenants)
  local fields = {}
  for _, tenant in pairs(tenants) do
    if tenant.touched then
      fields[#fields + 1] = tenant.field
      local levels = tenant.taken > 0 and fixed(tenant.tokens - tenant.taken) .. ':' .. now_text or tenant.as_stored
      fields[#fields + 1] = levels .. ':' .. (tenant.mark == 0 and '0' or fixed(tenant.mark))
    end
  end
  if #fields > 0 then redis.call('HSET', tenants_key, unpack(fields)) end
end

-- 6: how long until a tenant's tokens are worth a request for this want, which is its first: they cover it, or what comes
-- back in a second. Who is beyond its bucket leaves in full batches, not with each token that there is.
local function until_worth(tenant, want, room)
  local enough = math.min(want, room, whole(tenant.refill * WORTH_SECONDS), whole(tenant.capacity - tenant.reserve))
  enough = math.max(1, enough)
  if tenant.free >= enough then return 0 end
  return math.max(tenant.starved, (enough + tenant.reserve - tenant.tokens) / tenant.refill)
end

-- 6: what each want may get, in the order of priorities, and how long nothing is worth a request. Marks who lacks tokens.
local function demands(tenants, by_priority, priorities, room)
  local shortest
  local asked = {}
  for _, priority in ipairs(priorities) do
    for _, want in ipairs(by_priority[priority]) do
      local tenant = tenants[want.tenant]
      if not asked[want.tenant] then
        asked[want.tenant] = true
        local seconds = until_worth(tenant, want.want, room)
        shortest = math.min(shortest or seconds, seconds)
      end
      want.demand = math.min(want.want, tenant.unpromised)
      tenant.unpromised = tenant.unpromised - want.demand
      if not marketing and tenant.shared and want.demand < want.want then
        local ahead = math.max(0, (1 - tenant.tokens) / tenant.refill)
        tenant.mark = now + math.min(MARK_HORIZON, ahead) + TENANT_MARK_SLACK
        tenant.touched = true
      end
    end
  end
  return shortest or 0
end

-- 8: max-min split of `room` among one priority's wants. Returns what was given and the new cursor (nil: nothing given).
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

-- 8: the batch, priority by priority. Returns what was given in all.
local function split_batch(by_priority, priorities, room, cursors)
  local total = 0
  for _, priority in ipairs(priorities) do
    if total < room then
      local given_now, cursor = split(by_priority[priority], room - total, cursors[priority])
      total = total + given_now
      if cursor then
        cursors[priority] = cursor
        put('cursor:' .. priority, string.format('%.0f', cursor))
      end
    end
  end
  return total
end

-- 9: what the tenants got, and whose mark is over.
local function charge_tenants(tenants, by_priority, shares)
  for _, wants in pairs(by_priority) do
    for _, want in ipairs(wants) do
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
end

local function take_permit()
  if text('permit_left') ~= '' then put('probe_n', string.format('%.0f', number('probe_n') + 1)) end
  put('permit', args.grant)
  put('permit_left', '')
  put_number('permit_until', now + args.claim_ttl)
  put_number('probed', now)
  put('probe_last', args.batch)
  put('probe_next', due and 'replay' or 'due')
end

local function acquire()
  local request, quota = args.request, due and given(args.quota) or nil
  local wants = due and args.wants or {}
  local epoch = number('epoch')
  local shares, starved, priorities, cursors, by_priority = {}, {}, {}, {}, {}
  for i, want in ipairs(wants) do
    shares[i], starved[i] = 0, 0
    if not cursors[want[2]] then
      priorities[#priorities + 1] = want[2]
      cursors[want[2]], by_priority[want[2]] = number('cursor:' .. want[2]), {}
    end
  end
  table.sort(priorities)
  local function answer(granted, wait, reason, probe)
    local list = {}
    for i, priority in ipairs(priorities) do list[i] = {priority, cursors[priority]} end
    flush()
    return {granted, now_us, wait, reason, epoch, probe and 1 or 0, shares, starved, list}
  end
  local function wait(seconds, reason)
    return answer(0, math.max(1, micros(math.min(seconds, LONGEST_WAIT))), reason)
  end

  -- 1 circuit
  local probe = circuit() ~= ''
  local seconds, why, left_out = 0, '', {}
  if probe then seconds, why, left_out = until_probe(wants) end
  if seconds > 0 then return wait(seconds, why) end
  local asked = {}
  for i, want in ipairs(wants) do
    if not left_out[id_of(want[1])] then
      asked[#asked + 1] = want
      table.insert(by_priority[want[2]], {index = i, tenant = want[1], want = want[3], share = 0})
    end
  end

  -- 2 block, 3 waiting mark
  if number('blocked') > now then
    -- The one token that is there when the block ends is the transactional rail's, if it has asked.
    if due and not marketing then put_number('mark', math.max(number('mark'), number('blocked') + args.slack)) end
    return wait(number('blocked') - now, text('blocked_why'))
  end
  if marketing and number('mark') > now then return wait(number('mark') - now, 'transactional_waits') end

  -- 4 quota
  local room = probe and args.probe_batch or args.max_batch
  if quota then
    seconds = until_quota(quota)
    if seconds > 0 then return wait(seconds, 'quota') end
    room = math.min(room, whole(level_of('q', quota) - kept(quota)))
  end

  -- 5 retry budget. A probe has a pace of its own.
  local retry = not probe and given(args.retry) or nil
  if retry and until_retry(retry) > 0 then return wait(until_retry(retry), 'retries') end

  -- 7 for marketing: a refused call needs no look at its tenants, nothing of theirs would change.
  if marketing and until_token(request) > 0 then return wait(until_token(request), 'global') end

  -- 6 tenants
  local tenants = due and load_tenants(asked) or {}
  for i, want in ipairs(wants) do
    local hungry = tenants[want[1]] and tenants[want[1]].starved or 0
    if hungry > 0 then starved[i] = math.max(1, micros(math.min(hungry, LONGEST_WAIT))) end
  end
  seconds = demands(tenants, by_priority, priorities, room)
  if seconds > 0 then
    store_tenants(tenants)
    return wait(seconds, 'tenant')
  end

  -- 7 global token
  seconds = until_token(request)
  if seconds > 0 then
    put_number('mark', now + math.min(MARK_HORIZON, seconds) + args.slack)
    store_tenants(tenants)
    return wait(seconds, 'global')
  end

  -- 8 split
  local total = split_batch(by_priority, priorities, room, cursors)

  -- 9 grant
  charge_tenants(tenants, by_priority, shares)
  store_tenants(tenants)
  put_number('tokens', level_at_grant(request) - 1)
  put_number('at', now)
  put('spent', string.format('%.0f', number('spent') + 1))
  if quota then
    put_level('q', level_of('q', quota) - total)
    if not marketing and number('q_mark') > 0 then put('q_mark', '0') end
  end
  if retry then take_retry(retry) end
  if not marketing and number('mark') > 0 then put('mark', '0') end
  redis.call('ZADD', flights_key, fixed(now + args.flight_ttl), args.grant)
  if probe then take_permit() end
  return answer(1, 0, '', probe)
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
    if retry then
      put_level('r', math.min(retry[1], level_of('r', retry) + 1))
      if marketing then put_level('m', math.min(args.trickle[1], level_of('m', args.trickle) + 1)) end
    end
  end
  if quota and args.quota_back > 0 then put_level('q', math.min(quota[1], level_of('q', quota) + args.quota_back)) end
  if #args.back == 0 then return end
  local ids, levels, fields = {}, {}, {}
  for i, entry in ipairs(args.back) do ids[i] = level_field(entry[1], entry[4]) end
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

-- Each of `sets` (names with commas between) holds the cause of something that went wrong, and they have no name in common: so many
-- causes there are. One more case, whose cause is among `names`: a further set, or a smaller one in place of one that holds all.
local function add_witness(sets, names)
  local among, apart = {}, true
  for _, name in ipairs(names) do among[name] = true end
  for i, set in ipairs(sets) do
    local common = 0
    for _, name in ipairs(words(set, ',')) do common = common + (among[name] and 1 or 0) end
    if common > 0 then apart = false end
    if common == #names then sets[i] = table.concat(names, ',') end
  end
  if apart then sets[#sets + 1] = table.concat(names, ',') end
end

-- The circuit is open: whose contents may be the cause, as long as these may be a few. Else nobody's: it is the provider.
local function note_suspects(sets)
  local some = #sets > 0 and #args.failed_for > 0
  if some then add_witness(sets, args.failed_for) end
  put('run_for', some and #sets < FAILED_BATCHES and table.concat(sets, ';') or '')
end

-- How many different batches failed in a row, and how many of these failures cannot have one cause. Counted while the circuit is
-- closed only.
local function count_failure()
  local batches, sets = words(text('run'), ','), words(text('run_for'), ';')
  for _, id in ipairs(batches) do
    if id == args.batch then return #batches, #sets end
  end
  batches[#batches + 1] = args.batch
  add_witness(sets, #args.failed_for > 0 and args.failed_for or {args.batch})
  put('run', table.concat(batches, ','))
  put('run_for', table.concat(sets, ';'))
  return #batches, #sets
end

-- How many refusals in a row, on this rail and with this code, cannot have one cause.
local function count_refusal(refusal)
  local field, code, names = REFUSALS[args.rail], refusal[1], refusal[2]
  local sets = words(text(field), ';')
  if table.remove(sets, 1) ~= code then
    sets = {}
    put_number(field .. '_at', now)
  end
  add_witness(sets, names)
  put(field, code .. ';' .. table.concat(sets, ';'))
  return #sets
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
    forget_failures()
    forget_refusals(args.rail)
    if circuit() ~= '' then close_circuit() end
  elseif event == 'answered' then
    forget_failures()
    if before == 'unreachable' or before == 'credential' then close_circuit() end
  elseif event == 'refused' or event == 'forbidden' then
    if event == 'refused' then
      forget_failures()
      if before == 'unreachable' then close_circuit() end
    end
    local refusal = given(args.refused)
    if refusal and circuit() ~= 'refusing' and count_refusal(refusal) >= WITNESSES then
      local from = number(REFUSALS[args.rail] .. '_at')
      local wide = args.rail == 'transactional' or circuit() ~= ''
      open_circuit('refusing', wide and '' or args.rail)
      put_number('refusing_from', since > 0 and math.min(since, from) or from)
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
    forget_failures()
    if before == 'unreachable' then close_circuit() end
  elseif event == 'failed' and not was_wide then
    local batches, causes = count_failure()
    if causes >= WITNESSES or batches >= FAILED_BATCHES then
      local sets = words(text('run_for'), ';')
      open_circuit('unreachable', '')
      note_suspects(sets)
    end
  elseif event == 'failed' and before == 'unreachable' then
    note_suspects(words(text('run_for'), ';'))
  elseif event == 'credential' then
    if not was_wide then open_circuit('credential', '') end
  end

  if was_permit and text('permit') ~= '' then
    put('permit', '')
    put('permit_left', '')
    put('permit_until', '0')
    if event ~= 'none' then
      local n = number('probe_n') + 1
      put('probe_n', string.format('%.0f', n))
      put_number('probe_at', now + until_next_probe(n, args.jitter))
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
    closed and since > 0 and math.max(1, micros(now - since)) or 0,
  }
end

----------------------------------------------------------------------------------------------------------------- leaves

-- The request of a probe is about to leave: from now on its permit lasts for as long as everybody waits for an answer. One that
-- never gets here (its worker froze while it claimed) has asked the provider nothing, and proves nothing.
local function leaves()
  local ours = text('permit') == args.grant
  if ours then
    put('permit_left', '1')
    put_number('permit_until', now + args.permit_ttl)
  end
  flush()
  return {ours and 1 or 0, now_us}
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
if ARGV[1] == 'leaves' then return leaves() end
if ARGV[1] == 'late' then return late() end
if ARGV[1] == 'settle' then return settle() end
return redis.error_reply('governor: unknown operation ' .. tostring(ARGV[1]))
