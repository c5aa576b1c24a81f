// Tenants that sent nothing before come, one after the other, each with a small blast, while a blast of a million of A runs.

import exec from 'k6/execution';
import { sleep } from 'k6';

import { cancel, launch, makeBlast } from './lib/api.js';
import { uploadBlast } from './lib/blast.js';
import { number, tenant, tenants } from './lib/config.js';
import { once, optionsFor } from './lib/options.js';

const A = tenant('A');
const NEWCOMERS = tenants();
const RECIPIENTS = number('RECIPIENTS', 1010000);
const THEIRS = number('THEIRS', 50);
// Between two of them, in seconds: longer than any should wait.
const BETWEEN = 1.7;

export const options = optionsFor({ newcomers: once('newcomer', BETWEEN, NEWCOMERS.length, '10m') });

export function setup() {
  const blast = uploadBlast(A, RECIPIENTS, 'marketing');
  launch(A, blast);
  return { blast };
}

export function newcomer() {
  const who = NEWCOMERS[exec.scenario.iterationInTest];
  const recipients = [];
  for (let i = 0; i < THEIRS; i += 1) {
    recipients.push({ to: `guest${i}@inbox.example`, variables: { first_name: 'Grace', code: `NEW-${i}` } });
  }
  makeBlast(who, { category: 'marketing', recipients, launch: true });
  sleep(BETWEEN);
}

export function teardown({ blast }) {
  cancel(A, blast);
}
