// What a script is told, by `-e NAME=value` or by the environment (where a key is in no list of processes).

import { SharedArray } from 'k6/data';

export const BASE_URL = address('BASE_URL', 'http://127.0.0.1:8000');
export const SANDBOX_URL = address('SANDBOX_URL', 'http://127.0.0.1:8025');

const SENDERS = { A: 'Acme <hello@acme.example>', B: 'Bistro <hello@bistro.example>' };

// A number above 0.
export function number(name, usual) {
  const said = __ENV[name];
  const value = said === undefined || said === '' ? usual : Number(said);
  if (!(value > 0)) {
    throw new Error(`${name} must be a number above 0, not '${said}'.`);
  }
  return value;
}

// Tenant A or B: its name, API key and the address that it sends as.
export function tenant(name) {
  const key = __ENV[`KEY_${name}`];
  if (!key) {
    throw new Error(`KEY_${name} is missing: the API key of tenant ${name} (drk_…). k6/README.md says how to get one.`);
  }
  return { name, key, from: __ENV[`FROM_${name}`] || SENDERS[name] };
}

// Many tenants, from the JSON file that KEYS names: [{"name", "key", "from"}]. Read once for all virtual users.
export function tenants() {
  if (!__ENV.KEYS) {
    throw new Error('KEYS is missing: the full path of a JSON file with tenants and keys. k6/README.md says how to make one.');
  }
  return new SharedArray('tenants', () => {
    const found = JSON.parse(open(__ENV.KEYS));
    if (!Array.isArray(found) || !found.length || !found.every((one) => one.name && one.key && one.from)) {
      throw new Error(`${__ENV.KEYS} must be a list, not empty, of {"name", "key", "from"}.`);
    }
    return found;
  });
}

function address(name, usual) {
  return (__ENV[name] || usual).replace(/\/+$/, '');
}
