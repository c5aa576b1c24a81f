-- Notes a claim before its request, if the ledger is still on the server on which it was looked at last; one step, so that whoever
-- looks at the ledger of another server either finds the claim, or has kept its request from being made.
--
-- KEYS[1]  the server of the ledger, as last looked at
-- KEYS[2]  claims: stream
-- ARGV[1]  the server that committed the claim
-- ARGV[2]  batch; "": only compare
-- ARGV[3]  the claim, sealed
-- ARGV[4]  seconds for which claims are kept
-- ARGV[5]  claims that are kept at most
--
-- Answer: 1, or 0 if the ledger is on another server. An emptied Redis knows of none, and takes the word of who comes first.

local known = redis.call('get', KEYS[1])
if not known then
    redis.call('set', KEYS[1], ARGV[1])
elseif known ~= ARGV[1] then
    return 0
end
if ARGV[2] ~= '' then
    redis.call('xadd', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'batch', ARGV[2], 'claim', ARGV[3])
    redis.call('xtrim', KEYS[2], 'MINID', '~', (redis.call('time')[1] - ARGV[4]) * 1000)
end
return 1
