// Many tenants with a few marketing e-mails each, in turn.

import exec from 'k6/execution';

import { send } from './lib/api.js';
import { number, tenants } from './lib/config.js';
import { optionsFor } from './lib/options.js';

const TENANTS = tenants();
const EACH = number('EACH', 5);

export const options = optionsFor({
  small: { executor: 'shared-iterations', vus: 8, iterations: TENANTS.length * EACH, maxDuration: '10m' },
});

export default function small() {
  send(TENANTS[exec.scenario.iterationInTest % TENANTS.length], 'small', 'marketing');
}
