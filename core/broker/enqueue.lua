-- Puts a message on a queue as dramatiq's own script does, and leaves a wake for a consumer, in one step: who is woken finds
-- the message there.
--
-- KEYS[1]  the queue: list of message ids
-- KEYS[2]  its messages: hash of id → data
-- KEYS[3]  its wakes: list on which idle consumers block; how many there are matters, not what they are
-- ARGV[1]  message id
-- ARGV[2]  data
-- ARGV[3]  wakes that are kept at most
-- ARGV[4]  messages that may wait: with so many on the queue this one is left out. 0: it is never left out
--
-- Answer: 1, or 0 if it was left out

local at_most = tonumber(ARGV[4])
if at_most > 0 and redis.call('llen', KEYS[1]) >= at_most then
    return 0
end
redis.call('hset', KEYS[2], ARGV[1], ARGV[2])
redis.call('rpush', KEYS[1], ARGV[1])
redis.call('lpush', KEYS[3], '1')
redis.call('ltrim', KEYS[3], 0, ARGV[3] - 1)
return 1
