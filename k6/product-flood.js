// A sends tens of thousands of product e-mails, which share the transactional rail with everybody's login codes.

import { launch } from './lib/api.js';
import { uploadBlast } from './lib/blast.js';
import { steady } from './lib/codes.js';
import { number, tenant } from './lib/config.js';
import { once, optionsFor } from './lib/options.js';

export { code } from './lib/codes.js';

const A = tenant('A');
tenant('B');
const RECIPIENTS = number('RECIPIENTS', 50000);
// The flood takes RECIPIENTS ÷ 490 seconds of a limit of 10 requests/s: half of it is a tenant's.
const SECONDS = number('SECONDS', 60);
const BEFORE = number('BEFORE', 2);

export const options = optionsFor({
  codes_of_a: steady('A', SECONDS),
  codes_of_b: steady('B', SECONDS),
  flood: once('flood', BEFORE),
});

export function setup() {
  return { blast: uploadBlast(A, RECIPIENTS, 'product') };
}

export function flood({ blast }) {
  launch(A, blast);
}
