// The calls of the HTTP API. Each is a check; what setup cannot do without ends the run.

import http from 'k6/http';
import { check, fail } from 'k6';

import { BASE_URL } from './config.js';
import { record } from './record.js';

const HTML = '<p>Your code is <strong>{{ code }}</strong>.</p><p>It is valid for ten minutes. Nobody of us will ask you for it.</p>';

// One e-mail to one recipient. `kind` is what the run knows it by: steady, burst, small.
export function send(tenant, kind, category) {
  const code = String(Math.floor(Math.random() * 1e6)).padStart(6, '0');
  const answer = post(tenant, 'sends', {
    category,
    to: `user-${code}@inbox.example`,
    from: tenant.from,
    subject: '{{ code }} is your login code',
    html: HTML,
    variables: { code },
  });
  const taken = check(answer, { 'a send is answered 202': ({ status }) => status === 202 });
  const said = taken ? '202' : answer.status ? `HTTP ${answer.status}` : `no answer (${answer.error_code})`;
  record({ tenant: tenant.name, kind, answer: said, id: taken ? answer.json('id') : null });
}

// A new blast; its id, or null. With `recipients` and `launch` among the fields, that is all.
export function makeBlast(tenant, fields) {
  const answer = post(tenant, 'blasts', {
    name: 'k6',
    from: tenant.from,
    subject: '{{ first_name }}, our spring list',
    html: '<p>Dear {{ first_name }},</p><p>the spring list is here. Your code: <b>{{ code }}</b>.</p>',
    ...fields,
  });
  const made = check(answer, { 'a blast is answered 201': ({ status }) => status === 201 });
  return made ? answer.json('id') : null;
}

export function launch(tenant, blast) {
  const answer = step(tenant, blast, 'launch');
  if (!check(answer, { 'a launch is answered 200': ({ status }) => status === 200 })) {
    fail(`The blast cannot be launched: ${told(answer)}`);
  }
}

// What is left of it is not sent. One that is finished (409) is finished.
export function cancel(tenant, blast) {
  const answer = step(tenant, blast, 'cancel', { responseCallback: http.expectedStatuses(200, 409) });
  check(answer, { 'a cancel is answered 200 or 409': ({ status }) => status === 200 || status === 409 });
}

export function addRecipients(tenant, blast, csv) {
  return http.post(url(`blasts/${blast}/recipients`), csv, {
    headers: headers(tenant, 'text/csv'),
    tags: { name: 'recipients' },
    timeout: '300s',
  });
}

// Status and error code of an answer: never its whole body, which may quote the request.
export function told(answer) {
  let code = answer.error_code;
  try {
    code = answer.json('error.code') || code;
  } catch {
    // not JSON: k6's own code says what it was
  }
  return answer.status ? `HTTP ${answer.status} (${code})` : `no answer (${code}) from ${BASE_URL}`;
}

function post(tenant, path, body) {
  return http.post(url(path), JSON.stringify(body), { headers: headers(tenant), tags: { name: path } });
}

function step(tenant, blast, name, params = {}) {
  return http.post(url(`blasts/${blast}/${name}`), null, { headers: headers(tenant), tags: { name }, ...params });
}

function url(path) {
  return `${BASE_URL}/v1/messaging/${path}`;
}

// The key of a request makes it safe to repeat: k6 does so when a kept connection was closed under it.
function headers(tenant, type = 'application/json') {
  return { Authorization: `Bearer ${tenant.key}`, 'Content-Type': type, 'Idempotency-Key': crypto.randomUUID() };
}
