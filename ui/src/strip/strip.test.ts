// Where things lie on the strip, and how a record grows.

import { describe, expect, test } from 'vitest';
import type { CardState } from '../bindings/CardState';
import type { HoldReason } from '../bindings/HoldReason';
import type { Stretch } from '../bindings/Stretch';
import type { View } from '../agent/view';
import { bands, joined, joinedYields, kindOf, stretchAt, sums } from './geometry';
import { watched, type Watch } from './watch';

const DAY = { from_utc_ms: 0, to_utc_ms: 24_000 };
const INPUT: HoldReason = { type: 'input_recent', idle_ms: 1, needed_ms: 2, source: 's' };
const REST: HoldReason = { type: 'cool_off', remaining_ms: 1 };

function stretch(from_utc_ms: number, to_utc_ms: number, what: HoldReason | string | null, gpu = 'GPU-1'): Stretch {
  const sold =
    typeof what === 'string' ? { lease: `lease_${from_utc_ms}`, job: 'job_1', name: null, price: what } : null;
  return { gpu, from_utc_ms, to_utc_ms, held: typeof what === 'string' ? null : what, sold };
}

describe('kinds', () => {
  const held = (reason: HoldReason): Stretch => stretch(0, 1, reason);
  test.each<[Stretch, string]>([
    [held(INPUT), 'own'],
    [
      held({ type: 'foreign_use', process: { gpu: 'GPU-1', pid: 1, name: null, vram_used: null, utilisation: null } }),
      'own',
    ],
    [held(REST), 'held'],
    [held({ type: 'paused', until_utc_ms: null }), 'held'],
    [held({ type: 'unknown' }), 'held'],
    [stretch(0, 1, null), 'offered'],
    [stretch(0, 1, '0.1'), 'sold'],
  ])('%#', (of, kind) => expect(kindOf(of)).toBe(kind));
});

describe('bands', () => {
  test('lie by time and stand by price', () => {
    const drawn = bands(
      [stretch(0, 6_000, INPUT), stretch(6_000, 12_000, '0.200000'), stretch(12_000, 18_000, '0.400000')],
      DAY,
      480,
      100,
    );
    expect(drawn.map(({ kind, x, width, height }) => [kind, x, width, height])).toEqual([
      ['own', 0, 120, 36],
      ['sold', 120, 120, 75],
      ['sold', 240, 120, 100],
    ]);
  });

  test('are cut at the edges of the day; what lies outside is not drawn', () => {
    const drawn = bands(
      [
        stretch(-9_000, -1, null),
        stretch(-1_000, 1_000, null),
        stretch(23_000, 30_000, INPUT),
        stretch(24_000, 25_000, null),
      ],
      DAY,
      240,
      10,
    );
    expect(drawn.map(({ x, width }) => [x, width])).toEqual([
      [0, 10],
      [230, 10],
    ]);
  });

  test('of one kind that touch are one, but each sale stands alone', () => {
    const drawn = bands(
      [
        stretch(0, 100, REST),
        stretch(100, 200, { type: 'paused', until_utc_ms: null }),
        stretch(200, 300, '1'),
        stretch(300, 400, '1'),
      ],
      DAY,
      2400,
      10,
    );
    expect(drawn.map(({ kind, width }) => [kind, width])).toEqual([
      ['held', 20],
      ['sold', 10],
      ['sold', 10],
    ]);
  });

  test('a sale of a moment is still seen', () => {
    expect(bands([stretch(5, 6, '0.1')], DAY, 240, 10)[0]?.width).toBe(2);
  });
});

test('a moment belongs to the stretch that begins at it', () => {
  const two = [stretch(0, 10, INPUT), stretch(10, 20, null)];
  expect(stretchAt(two, 10)?.held).toBeNull();
  expect(stretchAt(two, 20)).toBeNull();
});

test('sums count what lies in the day only', () => {
  expect(sums([stretch(-5, 5, INPUT), stretch(5, 15, '1'), stretch(23_990, 24_100, null)], DAY)).toEqual({
    own: 5,
    held: 0,
    offered: 10,
    sold: 10,
  });
});

test('what the window saw goes on where the agent’s record ends, and overlaps nothing', () => {
  const record = [stretch(0, 100, INPUT), stretch(0, 50, null, 'GPU-2')];
  const watch = [
    stretch(20, 80, INPUT),
    stretch(80, 130, INPUT),
    stretch(60, 130, null, 'GPU-2'),
    stretch(1, 2, null, 'GPU-3'),
  ];
  expect(
    joined(record, watch)
      .slice(2)
      .map(({ gpu, from_utc_ms, to_utc_ms }) => [gpu, from_utc_ms, to_utc_ms]),
  ).toEqual([
    ['GPU-1', 100, 130],
    ['GPU-2', 60, 130],
    ['GPU-3', 1, 2],
  ]);
});

test('a yield known from several sides is told once, and yesterday’s not at all', () => {
  const at = (at_utc_ms: number) => ({
    at_utc_ms,
    gpu: 'GPU-1',
    cause: { type: 'hot' as const },
    frozen_ms: null,
    quiet_ms: null,
    vram_free_ms: null,
  });
  expect(joinedYields([[at(5), at(10)], [at(10)], [at(11)]], 10).map(({ at_utc_ms }) => at_utc_ms)).toEqual([10, 11]);
});

describe('watching', () => {
  const NOTHING: Watch = { stretches: [], since_utc_ms: null };
  const view = (held: HoldReason | null, lease: string | null = null): View => {
    const availability = held === null ? { type: 'available' } : { type: 'held', reasons: [held] };
    const state = {
      description: { uuid: 'GPU-1' },
      availability,
      lease: lease === null ? null : { lease, job: 'job_1', name: null, price: '1' },
    };
    return {
      snapshot: {} as View['snapshot'],
      cards: [{ state: state as unknown as CardState, heard_ms: 0 }],
      yields: [],
    };
  };
  const spans = (watch: Watch) =>
    watch.stretches.map((of) => [of.from_utc_ms, of.to_utc_ms, of.sold?.lease ?? of.held?.type ?? 'offered']);

  test('lengthens a stretch while its kind stays, whatever its numbers', () => {
    let watch = watched(NOTHING, view(INPUT), 1_000);
    watch = watched(watch, view({ ...INPUT, idle_ms: 77 }), 2_000);
    expect(spans(watch)).toEqual([[1_000, 2_000, 'input_recent']]);
    expect(watch.since_utc_ms).toBe(1_000);
  });

  test('begins a new one, without a gap, when the kind or the lease changes', () => {
    let watch = watched(NOTHING, view(INPUT), 1_000);
    watch = watched(watch, view(null), 4_000);
    watch = watched(watch, view(null, 'lease_1'), 5_000);
    watch = watched(watch, view(null, 'lease_2'), 6_000);
    watch = watched(watch, view(null, 'lease_2'), 7_000);
    expect(spans(watch)).toEqual([
      [1_000, 4_000, 'input_recent'],
      [4_000, 5_000, 'offered'],
      [5_000, 6_000, 'lease_1'],
      [6_000, 7_000, 'lease_2'],
    ]);
  });

  test('does not claim the time in which nobody watched', () => {
    let watch = watched(NOTHING, view(null), 1_000);
    watch = watched(watch, view(null), 600_000);
    expect(spans(watch)).toEqual([
      [1_000, 1_000, 'offered'],
      [600_000, 600_000, 'offered'],
    ]);
  });
});
