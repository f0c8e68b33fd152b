// Every pair of colours that the window puts together is readable: WCAG 2.2 AA, 4.5 : 1 for text, 3 : 1 for what carries
// meaning without being text.

import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

const CSS = readFileSync('src/style/tokens.css', 'utf8');
const [DARK = '', LIGHT = ''] = CSS.split('prefers-color-scheme: light');

function colours(text: string): Map<string, string> {
  return new Map([...text.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map(([, name = '', value = '']) => [name, value]));
}

function luminance(colour: string): number {
  const linear = [1, 3, 5].map((at) => {
    const share = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const [red = 0, green = 0, blue = 0] = linear;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(a: string, b: string): number {
  const [dark = 0, light = 0] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

const SURFACES = ['page', 'surface', 'raised'];
const TEXT = ['ink', 'ink-dim', 'earning-ink', 'held-ink', 'protected-ink'];
const SHAPES = ['edge', 'earning', 'held', 'protected', 'own-use', 'hatch'];

describe.each([
  ['dark', colours(DARK)],
  ['light', new Map([...colours(DARK), ...colours(LIGHT)])],
])('in the %s theme', (_theme, colour) => {
  const of = (name: string): string => colour.get(name) ?? `no --${name}`;

  test.each(TEXT.flatMap((ink) => SURFACES.map((surface) => [ink, surface])))('%s reads on %s', (ink, surface) => {
    expect(contrast(of(ink), of(surface))).toBeGreaterThanOrEqual(4.5);
  });

  // The strip and the borders of buttons lie on the page and on panels.
  test.each(SHAPES.flatMap((shape) => ['page', 'surface'].map((surface) => [shape, surface])))(
    '%s is seen on %s',
    (shape, surface) => {
      expect(contrast(of(shape), of(surface))).toBeGreaterThanOrEqual(3);
    },
  );

  test('the chosen side of the switch reads', () => {
    expect(contrast(of('page'), of('ink'))).toBeGreaterThanOrEqual(4.5);
  });
});

test('the surfaces, inks and accents are those of the design', () => {
  expect(['page', 'surface', 'raised', 'ink', 'earning'].map((name) => colours(DARK).get(name))).toEqual([
    '#121211',
    '#1b1b19',
    '#262623',
    '#ecebe6',
    '#35d0a5',
  ]);
  expect(['page', 'surface', 'raised', 'ink', 'earning'].map((name) => colours(LIGHT).get(name))).toEqual([
    '#faf9f6',
    '#f1f0eb',
    '#e4e2da',
    '#1c1b18',
    '#0b8f6f',
  ]);
});
