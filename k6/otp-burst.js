// Login codes of A, all at once, each a call of its own.

import { burstOf } from './lib/codes.js';
import { number, tenant } from './lib/config.js';
import { optionsFor } from './lib/options.js';

export { burst } from './lib/codes.js';

tenant('A');

export const options = optionsFor({ burst_of_a: burstOf('A', number('CODES', 300)) });
