// Moments of an agent's life, for looking at the window's components in a real browser while they are made: typed by the
// protocol's own bindings, so that a changed protocol does not compile here. These are drawings, not measurements; what is
// true of a real agent is tested by agent.test.ts.

import type { CardReading } from '../src/bindings/CardReading';
import type { CardState } from '../src/bindings/CardState';
import type { HoldReason } from '../src/bindings/HoldReason';
import type { LeaseState } from '../src/bindings/LeaseState';
import type { Snapshot } from '../src/bindings/Snapshot';
import type { Stretch } from '../src/bindings/Stretch';
import type { StripRecord } from '../src/bindings/StripRecord';
import type { YieldMeasure } from '../src/bindings/YieldMeasure';

/** Tuesday, 1 December 2026, 14:20 in Jakarta: the moment of every scene. */
export const NOW_UTC_MS = Date.UTC(2026, 11, 1, 7, 20);
export const ZONE = 'Asia/Jakarta';

export interface Scene {
  /** `null`: nobody answers. */
  readonly snapshot: Snapshot | null;
  /** `null`: an agent that keeps no record. */
  readonly strip: StripRecord | null;
  /** The agent refuses this page's key. */
  readonly stranger?: boolean;
}

const GIB = 2 ** 30;
const BIG = 'GPU-4ed1c6c0-0000-4000-8000-000000004090';
const SMALL = 'GPU-4ed1c6c0-0000-4000-8000-000000004070';

const LEASE: LeaseState = {
  lease: 'lease_019e2f60-7c00-7d1a-8000-2b6f5c1d7f30',
  job: 'job_019e2f60-7b00-7d1a-8000-2b6f5c1d7f3e',
  name: 'SmolLM2 batch',
  phase: { type: 'running' },
  price: '0.310000',
  thawed_ms: 2_532_000,
  gross: '0.218033',
};

const SECOND_LEASE = 'lease_019e2f60-7c00-7d1a-8000-2b6f5c1d7f31';

function reading(uuid: string, celsius: number, watts: number, limit: number, use: number, vram: number): CardReading {
  const value = <T>(of: T): { type: 'value'; value: T } => ({ type: 'value', value: of });
  return {
    uuid,
    temperature: value(celsius),
    memory_temperature: { type: 'not_supported' },
    power: value(watts * 1000),
    power_limit: value(limit * 1000),
    utilisation: value(use),
    vram_used: value(Math.round(vram * GIB)),
    fan: value(40),
    core_clock: value(2100),
  };
}

function yielded(gpu: string, ago_min: number, quiet_ms: number, cause: YieldMeasure['cause']): YieldMeasure {
  const at_utc_ms = NOW_UTC_MS - ago_min * 60_000;
  return { at_utc_ms, gpu, cause, frozen_ms: 3, quiet_ms, vram_free_ms: quiet_ms * 12 };
}

const bigCard: CardState = {
  description: {
    uuid: BIG,
    name: 'NVIDIA GeForce RTX 4090 (SIMULATED)',
    index: 0,
    simulated: true,
    vram_total: 24 * GIB,
    driver_version: '580.95',
    power_limits: { type: 'value', value: { least: 150_000, most: 450_000, factory: 450_000 } },
  },
  reading: reading(BIG, 61, 212, 300, 97, 18.2),
  floor: '0.100000',
  limits: { core_hard: 83, resume_below: 65 },
  availability: { type: 'available' },
  lease: null,
  last_yield: yielded(BIG, 213, 84, { type: 'owner_input' }),
};

const smallCard: CardState = {
  ...bigCard,
  description: {
    ...bigCard.description,
    uuid: SMALL,
    name: 'NVIDIA GeForce RTX 4070 (SIMULATED)',
    index: 1,
    vram_total: 12 * GIB,
    power_limits: { type: 'value', value: { least: 100_000, most: 220_000, factory: 200_000 } },
  },
  reading: reading(SMALL, 38, 14, 200, 2, 0.9),
  floor: '0.080000',
  last_yield: yielded(SMALL, 9, 91, { type: 'owner_input' }),
};

const held = (card: CardState, ...reasons: HoldReason[]): CardState => ({
  ...card,
  availability: { type: 'held', reasons },
});

const KEYBOARD: HoldReason = { type: 'input_recent', idle_ms: 42_000, needed_ms: 300_000, source: 'XInput2' };
const GAME: HoldReason = {
  type: 'foreign_use',
  process: { gpu: BIG, pid: 48_213, name: 'blender', vram_used: Math.round(6.4 * GIB), utilisation: 71 },
};

const NOT_HERE = { type: 'not_applicable', why: 'not on this machine' } as const;

const base: Snapshot = {
  protocol: 1,
  agent_version: '0.1.0',
  now: { boot_ms: 86_400_000, utc_ms: NOW_UTC_MS },
  lab: true,
  market: {
    type: 'connected',
    url: 'http://127.0.0.1:7350',
    exchange: 'lab exchange',
    node: 'node_019e2f60-7a00-7d1a-8000-2b6f5c1d7f31',
  },
  isolation: { type: 'ready', level: 'native' },
  pause: null,
  settings_problem: null,
  signals: {
    input: { type: 'value', value: { last_input_boot_ms: 86_358_000 }, source: 'XInput2', seen_boot_ms: 86_400_000 },
    foreign: { type: 'value', value: [], source: 'NVML', seen_boot_ms: 86_400_000 },
    senses: {
      gamepad: NOT_HERE,
      engaged: NOT_HERE,
      playing: NOT_HERE,
      locked: NOT_HERE,
      remote: NOT_HERE,
      power: NOT_HERE,
      metered: NOT_HERE,
      sleeping_cards: NOT_HERE,
    },
  },
  cards: [bigCard],
  earned: {
    today_net: '1.842117',
    total_net: '41.070200',
    total_fee: '4.563356',
    total_electricity: '9.310000',
    pending_gross: '0.021528',
  },
};

/** Minutes after local midnight. */
const at = (hour: number, minute = 0): number => NOW_UTC_MS - (14 * 60 + 20) * 60_000 + (hour * 60 + minute) * 60_000;

type Piece = [number, HoldReason | { price: string; name: string } | 'offered'];

/** Pieces of a day, each until the next one begins. */
function stretches(gpu: string, pieces: Piece[]): Stretch[] {
  return pieces.map(([from_utc_ms, what], index) => ({
    gpu,
    from_utc_ms,
    to_utc_ms: pieces[index + 1]?.[0] ?? NOW_UTC_MS,
    held: what === 'offered' || 'price' in what ? null : what,
    sold: what !== 'offered' && 'price' in what ? { lease: LEASE.lease, job: LEASE.job, ...what } : null,
  }));
}

const REST: HoldReason = { type: 'cool_off', remaining_ms: 300_000 };
const OWNERS_PAUSE: HoldReason = { type: 'paused', until_utc_ms: null };

const piecesOfBig: Piece[] = [
  [at(0), KEYBOARD],
  [at(1, 5), REST],
  [at(1, 20), 'offered'],
  [at(2, 2), { price: '0.340000', name: 'SmolLM2 batch' }],
  [at(4, 31), { price: '0.260000', name: 'render 218' }],
  [at(6, 10), 'offered'],
  [at(6, 44), KEYBOARD],
  [at(8, 40), OWNERS_PAUSE],
  [at(9, 45), 'offered'],
  [at(10, 5), { price: '0.210000', name: 'char transformer' }],
  [at(10, 47), KEYBOARD],
  [at(12, 58), REST],
  [at(13, 3), 'offered'],
  [at(13, 37), { price: '0.310000', name: 'SmolLM2 batch' }],
];
/** Its day until the piece of this number, which then goes on until now. */
const dayOfBigUntil = (pieces: number): StripRecord => ({
  stretches: stretches(BIG, piecesOfBig.slice(0, pieces)),
  yields: [],
});
const dayOfBig = stretches(BIG, piecesOfBig);

const dayOfSmall = stretches(SMALL, [
  [at(0), KEYBOARD],
  [at(1, 5), REST],
  [at(1, 20), 'offered'],
  [at(3, 12), { price: '0.120000', name: 'embeddings' }],
  [at(5, 50), { type: 'hot', temperature: 84, resume_below: 65 }],
  [at(6, 5), 'offered'],
  [at(6, 44), KEYBOARD],
  [at(8, 40), OWNERS_PAUSE],
  [at(9, 45), 'offered'],
  [at(10, 47), KEYBOARD],
]);

const heat = yielded(SMALL, 14 * 60 + 20 - (5 * 60 + 50), 210, { type: 'hot' });
const day: StripRecord = { stretches: [...dayOfBig, ...dayOfSmall], yields: [heat] };
const dayOfOne: StripRecord = { stretches: dayOfBig, yields: [] };
const emptyDay: StripRecord = { stretches: [], yields: [] };

const idle = { ...bigCard, reading: reading(BIG, 34, 18, 300, 0, 0.4) };
const untilTomorrow = NOW_UTC_MS + (15 * 60 + 40) * 60_000;
const nothingEarned = {
  today_net: '0.000000',
  total_net: '0.000000',
  total_fee: '0.000000',
  total_electricity: '0.000000',
  pending_gross: '0.000000',
};

export const SCENES = {
  earning: {
    snapshot: { ...base, cards: [{ ...bigCard, lease: LEASE }, held(smallCard, KEYBOARD)] },
    strip: day,
  },
  sharing: { snapshot: { ...base, cards: [idle] }, strip: dayOfBigUntil(13) },
  held: {
    snapshot: {
      ...base,
      cards: [
        held(
          { ...bigCard, reading: reading(BIG, 71, 241, 300, 88, 9.7) },
          GAME,
          {
            type: 'hot',
            temperature: 71,
            resume_below: 65,
          },
          KEYBOARD,
        ),
      ],
    },
    strip: dayOfBigUntil(11),
  },
  paused: {
    snapshot: {
      ...base,
      pause: { since_utc_ms: NOW_UTC_MS, until_utc_ms: untilTomorrow },
      cards: [
        held(idle, { type: 'paused', until_utc_ms: untilTomorrow }),
        held(smallCard, { type: 'paused', until_utc_ms: untilTomorrow }, KEYBOARD),
      ],
    },
    strip: day,
  },
  empty: { snapshot: { ...base, lab: false, cards: [], earned: nothingEarned }, strip: emptyDay },
  missing: { snapshot: null, strip: null },
  stranger: { snapshot: base, strip: null, stranger: true },
  newer: { snapshot: { ...base, protocol: 2, agent_version: '0.9.0' }, strip: null },
  /** An agent without a record: the strip begins when the window was opened. One job's image is on its way; another's card was wiped. */
  unrecorded: {
    snapshot: {
      ...base,
      earned: nothingEarned,
      cards: [
        {
          ...idle,
          lease: {
            ...LEASE,
            phase: { type: 'fetching' },
            thawed_ms: 0,
            gross: '0.000000',
            transfer: { done: 812 * 2 ** 20, total: 4 * GIB, layers_done: 3, layers: 9 },
          },
        },
        {
          ...smallCard,
          lease: { ...LEASE, lease: SECOND_LEASE, name: 'embeddings', wiped: { wiped: 11.6 * GIB, took_ms: 640 } },
        },
      ],
    },
    strip: null,
  },
  troubled: {
    snapshot: {
      ...base,
      lab: false,
      market: {
        type: 'connecting',
        url: 'https://exchange.example',
        last_error: 'connection refused (os error 111)',
      },
      settings_problem: 'line 4, column 9: "flor" is no setting; did you mean "floor"?',
      cards: [
        {
          ...idle,
          description: { ...idle.description, simulated: false, name: 'NVIDIA GeForce RTX 3090' },
          reading: {
            ...reading(BIG, 34, 18, 300, 0, 0.4),
            power: { type: 'not_supported' },
            temperature: { type: 'invalid', why: '511 °C' },
          },
        },
      ],
    },
    strip: dayOfOne,
  },
  unisolated: {
    snapshot: {
      ...base,
      isolation: { type: 'missing', why: 'cgroup v2 is not mounted; Sela needs it to end jobs at once' },
      cards: [held(idle, { type: 'no_isolation', why: 'cgroup v2 is not mounted' })],
    },
    strip: dayOfOne,
  },
} satisfies Record<string, Scene>;

export type SceneName = keyof typeof SCENES;
