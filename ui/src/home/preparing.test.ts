// How far a job's image is and that the card was wiped, in both languages: values in, words out.

import { describe, expect, test } from 'vitest';
import type { ImageTransfer } from '../bindings/ImageTransfer';
import { formats } from '../words/format';
import { speaker } from '../words/say';
import { imageBytes, imageLayers, wipedLine } from './preparing';

const LANGUAGES = [
  { say: speaker('en', 'en-GB'), show: formats('en-GB') },
  { say: speaker('id', 'id-ID'), show: formats('id-ID') },
] as const;
const GIB = 2 ** 30;
const plain = (text: string | null): string | null => text?.replaceAll('\u202f', ' ') ?? null;

describe('the image of a job', () => {
  test.each<[string, ImageTransfer, [string, string], [string, string] | null]>([
    [
      'with a known size',
      { done: 812 * 2 ** 20, total: 4 * GIB, layers_done: 3, layers: 9 },
      ['812 MB of 4.0 GB', '812 MB dari 4,0 GB'],
      ['3 of 9', '3 dari 9'],
    ],
    [
      'of an unknown one',
      { done: 1.5 * GIB, total: null, layers_done: 0, layers: null },
      ['1.5 GB so far', '1,5 GB sejauh ini'],
      null,
    ],
    [
      'all here and not yet unpacked',
      { done: 40 * 2 ** 20, total: 40 * 2 ** 20, layers_done: 0, layers: 1 },
      ['40 MB of 40 MB', '40 MB dari 40 MB'],
      ['0 of 1', '0 dari 1'],
    ],
  ])('%s', (_, transfer, bytes, layers) => {
    LANGUAGES.forEach(({ say, show }, language) => {
      expect(plain(imageBytes(transfer, say, show))).toBe(bytes[language]);
      expect(plain(imageLayers(transfer, say))).toBe(layers === null ? null : layers[language]);
    });
  });
});

test('that the card was wiped says how much and how long it took', () => {
  const lines = LANGUAGES.map(({ say, show }) => plain(wipedLine({ wiped: 23.7 * GIB, took_ms: 640 }, say, show)));
  expect(lines).toEqual([
    "23.7 GB of the card's memory were wiped before it started, in 640 ms.",
    '23,7 GB memori kartu dihapus sebelum dimulai, dalam 640 ms.',
  ]);
});
