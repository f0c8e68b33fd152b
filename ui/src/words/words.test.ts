// Texts, numbers, money and times, in both languages.

import { describe, expect, test } from 'vitest';
import en from '../../messages/en.json';
import { endOfDay, startOfDay, thirdHours, tomorrow } from './day';
import { formats } from './format';
import { chosen } from './language.svelte';
import { speaker } from './say';

describe('texts', () => {
  const english = speaker('en', 'en-US');
  const indonesian = speaker('id', 'id-ID');

  test.each<[number, string, string]>([
    [1, 'Not sharing: your card is held.', 'Tidak berbagi: 1 kartu ditahan.'],
    [2, 'Not sharing: all 2 cards are held.', 'Tidak berbagi: 2 kartu ditahan.'],
    [1234, 'Not sharing: all 1,234 cards are held.', 'Tidak berbagi: 1.234 kartu ditahan.'],
  ])('take the form for %d', (count, inEnglish, inIndonesian) => {
    expect(english('sentence.held', { count })).toBe(inEnglish);
    expect(indonesian('sentence.held', { count })).toBe(inIndonesian);
  });

  test('leave what looks like a place in a filled text alone', () => {
    expect(english('notice.command_failed', { why: '{why} $& $1' })).toBe('That was not done: {why} $& $1');
  });

  test('are marked and longer in the pseudo language', () => {
    expect(speaker('en', 'en', true)('nav.home')).toBe('⟦Home··⟧');
  });

  test('use the words of the design', () => {
    const everything = JSON.stringify(en).toLowerCase();
    for (const word of ['mined', 'mining', 'preempt', 'gpu device', 'disabled']) expect(everything).not.toContain(word);
  });
});

describe('the language', () => {
  test.each<[string | null, string[], string, string]>([
    [null, ['en-GB', 'en'], 'en', 'en-GB'],
    [null, ['de-DE', 'id-ID'], 'id', 'id-ID'],
    [null, ['de-DE'], 'en', 'en'],
    ['id', ['en-US'], 'id', 'id'],
    ['en', ['id-ID', 'en-AU'], 'en', 'en-AU'],
    ['xx', [], 'en', 'en'],
    ['toString', ['id'], 'id', 'id'],
  ])('asked %j with %j is %s in %s', (asked, wanted, language, locale) => {
    expect(chosen(asked, wanted)).toEqual({ language, locale });
  });
});

describe('money', () => {
  test.each<[string, string, string]>([
    ['1.842117', '$1.84', 'US$ 1,84'],
    ['0.000000', '$0.00', 'US$ 0,00'],
    ['-0.000000', '$0.00', 'US$ 0,00'],
    ['0.004999', '<\u202f$0.01', '<\u202fUS$ 0,01'],
    ['0.005000', '$0.01', 'US$ 0,01'],
    ['-0.412500', '-$0.41', '-US$ 0,41'],
    ['-0.001000', '>\u202f-$0.01', '>\u202f-US$ 0,01'],
    ['1234567.890000', '$1,234,567.89', 'US$ 1.234.567,89'],
  ])('%s', (amount, inEnglish, inIndonesian) => {
    expect(formats('en-US').money(amount)).toBe(inEnglish);
    // Engines differ in the space after US$.
    expect(
      formats('id-ID')
        .money(amount)
        .replace(/US\$\s*/, 'US$ '),
    ).toBe(inIndonesian);
  });
});

describe('spans', () => {
  const show = formats('en-US');
  test.each<[number, string, string]>([
    [0, '0\u202fs', '0\u202fs'],
    [1, '1\u202fs', '0\u202fs'],
    [42_000, '42\u202fs', '42\u202fs'],
    [59_001, '1:00', '59\u202fs'],
    [258_000, '4:18', '4:18'],
    [3_723_000, '1:02:03', '1:02:03'],
    [360_000_000, '100:00:00', '100:00:00'],
  ])('%d ms', (ms, up, down) => {
    expect(show.span(ms)).toBe(up);
    expect(show.span(ms, 'down')).toBe(down);
  });

  test('measured ones are exact below a second', () => {
    expect(show.measured(84)).toBe('84\u202fms');
    expect(formats('id-ID').measured(1_240)).toBe('1,2\u202fs');
  });

  test('hours leave out what is nothing', () => {
    expect([0, 600_000, 7_200_000, 7_800_000].map((ms) => show.hours(ms))).toEqual([
      '0 min',
      '10 min',
      '2 hr',
      '2 hr 10 min',
    ]);
  });
});

describe('the local day', () => {
  // vitest runs in Berlin (see vite.config.ts): 29 March 2026 has 23 hours, 25 October 25.
  const HOUR = 3_600_000;
  test.each<[string, number, number]>([
    ['2026-03-29T12:00', 23, 9],
    ['2026-10-25T12:00', 25, 9],
    ['2026-12-01T00:00', 24, 9],
  ])('%s', (noon, hours, labels) => {
    const now = new Date(noon).getTime();
    expect(endOfDay(now) - startOfDay(now)).toBe(hours * HOUR);
    const third = thirdHours(now);
    expect(third).toHaveLength(labels);
    expect([third[0], third[8]]).toEqual([startOfDay(now), endOfDay(now)]);
    expect(third.slice(0, 8).map((utc_ms) => new Date(utc_ms).getHours())).toEqual([0, 3, 6, 9, 12, 15, 18, 21]);
  });

  test('tomorrow ends the next morning at six, before and after midnight and over a change of the clocks', () => {
    const until = (text: string): string => new Date(tomorrow(new Date(text).getTime())).toString().slice(0, 21);
    expect(until('2026-12-01T23:59')).toBe('Wed Dec 02 2026 06:00');
    expect(until('2026-12-01T00:01')).toBe('Wed Dec 02 2026 06:00');
    expect(until('2026-03-28T23:00')).toBe('Sun Mar 29 2026 06:00');
    expect(until('2026-12-31T12:00')).toBe('Fri Jan 01 2027 06:00');
  });
});
