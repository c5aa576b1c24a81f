// What holds for every script: all calls succeed, and none is late because k6 could not keep up.

const THRESHOLDS = {
  http_req_failed: ['rate==0'],
  checks: ['rate==1'],
  dropped_iterations: ['count==0'],
};

// `setupTimeout`: a list of a million is uploaded there.
export function optionsFor(scenarios) {
  return { scenarios, thresholds: THRESHOLDS, setupTimeout: '15m', teardownTimeout: '60s' };
}

// One virtual user calls `exec` once (or `iterations` times, one after the other), `at` seconds after the start.
export function once(exec, at = 0, iterations = 1, maxDuration = '60s') {
  return { executor: 'shared-iterations', exec, vus: 1, iterations, startTime: `${at}s`, maxDuration };
}
