// Prints what the page weighs over the wire and fails above the budget of the design.

import { readdirSync, readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

const BUDGET_KB = 250;
const folder = new URL('dist/assets/', import.meta.url);
const weigh = (ending) =>
  readdirSync(folder)
    .filter((name) => name.endsWith(ending))
    .reduce((sum, name) => sum + gzipSync(readFileSync(new URL(name, folder)), { level: 9 }).length, 0) / 1000;

const js = weigh('.js');
console.log(`js ${js.toFixed(1)} KB gzip of ${BUDGET_KB} KB allowed, css ${weigh('.css').toFixed(1)} KB gzip`);
if (js > BUDGET_KB) {
  console.error(`the window's JavaScript is over its budget of ${BUDGET_KB} KB`);
  process.exit(1);
}
