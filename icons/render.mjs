// Renders every icon from sign.mjs into generated/ and the window's favicon; `--check` only compares, so that a drawing and
// its pictures never differ. The two containers, .ico and .icns, are put together here: both just hold PNGs.

import { Resvg } from '@resvg/resvg-js';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { app, PANELS, STATES, tray, TRAY_SIZES } from './sign.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const APP_SIZES = [32, 64, 128, 256, 512];
const ICO_SIZES = [16, 32, 48, 256];
/** Apple's names for PNGs of these sizes. */
const ICNS = { ic11: 32, ic12: 64, ic07: 128, ic08: 256, ic09: 512, ic10: 1024 };

const png = (svg, width) =>
  Buffer.from(
    new Resvg(svg, { fitTo: { mode: 'width', value: width }, font: { loadSystemFonts: false } }).render().asPng(),
  );

function ico(images) {
  const header = Buffer.alloc(6 + 16 * images.length);
  header.writeUInt16LE(1, 2);
  header.writeUInt16LE(images.length, 4);
  let offset = header.length;
  images.forEach(({ size, data }, index) => {
    const at = 6 + 16 * index;
    // 256 is written as 0.
    header.writeUInt8(size % 256, at);
    header.writeUInt8(size % 256, at + 1);
    header.writeUInt16LE(1, at + 4);
    header.writeUInt16LE(32, at + 6);
    header.writeUInt32LE(data.length, at + 8);
    header.writeUInt32LE(offset, at + 12);
    offset += data.length;
  });
  return Buffer.concat([header, ...images.map(({ data }) => data)]);
}

function icns(images) {
  const chunk = (name, data) => {
    const head = Buffer.alloc(8);
    head.write(name, 0, 'latin1');
    head.writeUInt32BE(data.length + 8, 4);
    return Buffer.concat([head, data]);
  };
  return chunk('icns', Buffer.concat(images.map(({ name, data }) => chunk(name, data))));
}

/** Every file by its path from the repository's root. */
function files() {
  const found = new Map();
  const sign = app();
  found.set('icons/sign.svg', Buffer.from(sign));
  found.set('ui/public/sign.svg', Buffer.from(sign));
  for (const size of APP_SIZES) found.set(`icons/generated/app/${size}.png`, png(sign, size));
  found.set('icons/generated/app/sela.ico', ico(ICO_SIZES.map((size) => ({ size, data: png(sign, size) }))));
  found.set(
    'icons/generated/app/sela.icns',
    icns(Object.entries(ICNS).map(([name, size]) => ({ name, data: png(sign, size) }))),
  );
  for (const state of STATES)
    for (const panel of Object.keys(PANELS))
      for (const size of TRAY_SIZES) {
        const svg = tray(state, panel, size);
        found.set(`icons/generated/tray/${state}-${panel}-${size}.png`, png(svg, size));
        if (panel === 'dark') found.set(`icons/tray/${state}-${size}.svg`, Buffer.from(svg));
      }
  return found;
}

const stale = [];
for (const [path, content] of files()) {
  const target = join(HERE, '..', path);
  if (process.argv.includes('--check')) {
    if (!existsSync(target) || !readFileSync(target).equals(content)) stale.push(path);
  } else {
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, content);
  }
}
if (stale.length > 0) {
  console.error(`stale: ${stale.join(', ')}\nrun \`npm run icons\` and commit what it writes`);
  process.exit(1);
}
