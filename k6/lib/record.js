// What `make k6` reads from the output, a line each; alone, a script is silent.

export function record(what) {
  if (__ENV.RECORD) {
    console.log(`record ${JSON.stringify(what)}`);
  }
}
