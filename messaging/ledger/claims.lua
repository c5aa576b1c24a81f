-- Notes a claim before its request, if the ledger is still on the server on which it was looked at last, and no send was taken from
-- it then; one step, so that whoever looks at the ledger of another server either finds the claim, or has kept its request from
-- being made.
--
-- KEYS[1]  the server of the ledger, as last looked at
-- KEYS[2]  claims: stream
-- KEYS[3]  set: who may not request his batch any more
-- ARGV[1]  the server that committed the claim
-- ARGV[2]  whoever holds the batch: it, and his fence
-- ARGV[3]  batch
-- ARGV[4]  the claim, sealed; "": only ask
-- ARGV[5]  seconds for which claims are kept
-- ARGV[6]  claims that are kept at most
--
-- Answer: 1, or 0 if the ledger is on another server or he is refused. An emptied Redis knows of none, and takes the word of who comes first.

local known = redis.call('get', KEYS[1])
if not known then
    redis.call('set', KEYS[1], ARGV[1])
elseif known ~= ARGV[1] then
    return 0
end
if redis.call('sismember', KEYS[3], ARGV[2]) == 1 then
    return 0
end
if ARGV[4] ~= '' then
    redis.call('xadd', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', 'batch', ARGV[3], 'claim', ARGV[4])
    redis.call('xtrim', KEYS[2], 'MINID', '~', (redis.call('time')[1] - ARGV[5]) * 1000)
end
return 1
