// The provider answers 429 to everything for a while, in the middle of a blast of A and of login codes of A and B.

import http from 'k6/http';
import { check } from 'k6';

import { cancel, launch } from './lib/api.js';
import { uploadBlast } from './lib/blast.js';
import { steady } from './lib/codes.js';
import { number, SANDBOX_URL, tenant } from './lib/config.js';
import { once, optionsFor } from './lib/options.js';
import { record } from './lib/record.js';

export { code } from './lib/codes.js';

const A = tenant('A');
tenant('B');
const RECIPIENTS = number('RECIPIENTS', 60000);
const SECONDS = number('SECONDS', 52);
const BEFORE = number('BEFORE', 17);
const STORM = number('STORM', 20);

export const options = optionsFor({
  codes_of_a: steady('A', SECONDS),
  codes_of_b: steady('B', SECONDS),
  storm: once('storm', BEFORE),
});

export function setup() {
  const blast = uploadBlast(A, RECIPIENTS, 'marketing');
  launch(A, blast);
  return { blast };
}

export function storm() {
  const fault = JSON.stringify({ fault: '429', seconds: STORM, retry_after: 1 });
  const answer = http.post(`${SANDBOX_URL}/_sandbox/faults`, fault, { headers: { 'Content-Type': 'application/json' } });
  check(answer, { 'the sandbox begins its storm (201)': ({ status }) => status === 201 });
  record({ storm_ends: Date.now() / 1000 + STORM });
}

export function teardown({ blast }) {
  cancel(A, blast);
}
