// A blast of any length: its list goes up in parts, so that neither end holds all of it.

import { check, fail } from 'k6';

import { addRecipients, makeBlast, told } from './api.js';

const PART = 50000;

// Not launched yet; its id.
export function uploadBlast(tenant, recipients, category) {
  const blast = makeBlast(tenant, { category });
  if (blast === null) {
    fail('No blast could be made.');
  }
  for (let first = 0; first < recipients; first += PART) {
    const rows = Math.min(PART, recipients - first);
    const answer = addRecipients(tenant, blast, list(first, rows));
    const added = check(answer, { 'a list is added whole': (got) => got.status === 200 && got.json('added') === rows });
    if (!added) {
      fail(`The list could not be added: ${told(answer)}`);
    }
  }
  return blast;
}

function list(first, rows) {
  const lines = ['to,first_name,code'];
  for (let i = first; i < first + rows; i += 1) {
    lines.push(`customer${i}@inbox.example,Ada,SPRING-${i}`);
  }
  return lines.join('\n');
}
