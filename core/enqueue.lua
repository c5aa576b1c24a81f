-- Puts a message on a queue as dramatiq's own script does, and leaves a wake for a consumer, in one step: who is woken finds
-- the message there.
--
-- KEYS[1]  the queue: list of message ids
-- KEYS[2]  its messages: hash of id → data
-- KEYS[3]  its wakes: list on which idle consumers block; how many there are matters, not what they are
-- ARGV[1]  message id
-- ARGV[2]  data
-- ARGV[3]  wakes that are kept at most

redis.call('hset', KEYS[2], ARGV[1], ARGV[2])
redis.call('rpush', KEYS[1], ARGV[1])
redis.call('lpush', KEYS[3], '1')
redis.call('ltrim', KEYS[3], 0, ARGV[3] - 1)
