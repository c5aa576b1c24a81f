// A blast of a million of A, login codes of A and of B beside it, and a burst of codes of A in it.

import { cancel, launch } from './lib/api.js';
import { uploadBlast } from './lib/blast.js';
import { burstOf, steady } from './lib/codes.js';
import { number, tenant } from './lib/config.js';
import { optionsFor } from './lib/options.js';

export { burst, code } from './lib/codes.js';

const A = tenant('A');
tenant('B');
const RECIPIENTS = number('RECIPIENTS', 1010000);
const SECONDS = number('SECONDS', 132);
const CODES = number('CODES', 300);

export const options = optionsFor({
  codes_of_a: steady('A', SECONDS),
  codes_of_b: steady('B', SECONDS),
  burst_of_a: burstOf('A', CODES, SECONDS * 0.7),
});

export function setup() {
  const blast = uploadBlast(A, RECIPIENTS, 'marketing');
  launch(A, blast);
  return { blast };
}

export function teardown({ blast }) {
  cancel(A, blast);
}
