// Login codes of tenants A and B: a steady stream, and bursts. A script exports `code` and `burst`, which the scenarios call.

import { sleep } from 'k6';

import { send } from './api.js';
import { tenant } from './config.js';

// Per tenant and second.
const RATE = 2;
// As many connections as the web process of the Procfile has threads.
const BURST_USERS = 8;

// Open loop: a code is due when the schedule says so, however slow the answers are.
export function steady(name, seconds) {
  return {
    executor: 'constant-arrival-rate',
    exec: 'code',
    env: { TENANT: name },
    rate: RATE,
    timeUnit: '1s',
    duration: `${seconds}s`,
    preAllocatedVUs: 10,
    maxVUs: 50,
    gracefulStop: '15s',
  };
}

// So many codes at once, each a call of its own, `at` seconds after the start.
export function burstOf(name, codes, at = 0) {
  return {
    executor: 'shared-iterations',
    exec: 'burst',
    env: { TENANT: name },
    vus: Math.min(BURST_USERS, codes),
    iterations: codes,
    startTime: `${at}s`,
    maxDuration: '60s',
  };
}

// At a random moment of its slot: on an even grid two tenants' codes would always, or never, arrive together.
export function code() {
  sleep(Math.random() / RATE);
  send(tenant(__ENV.TENANT), 'steady', 'transactional');
}

export function burst() {
  send(tenant(__ENV.TENANT), 'burst', 'transactional');
}
