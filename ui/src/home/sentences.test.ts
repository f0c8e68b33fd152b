// What Home says, state by state, in both languages: a table of views in, sentences out.

import { describe, expect, test } from 'vitest';
import { condition, signOf } from '../agent/condition';
import { applied, type View } from '../agent/view';
import type { CardState } from '../bindings/CardState';
import type { EndCause } from '../bindings/EndCause';
import type { HoldReason } from '../bindings/HoldReason';
import type { LeasePhase } from '../bindings/LeasePhase';
import type { Snapshot } from '../bindings/Snapshot';
import { SCENES } from '../../browser/scenes';
import { formats } from '../words/format';
import { speaker } from '../words/say';
import { shortName } from './names';
import { notices } from './notices';
import { causeClause, clause, pastClause } from './reasons';
import { lines, sentence } from './sentence';

const SPEAKERS = { en: speaker('en', 'en-GB'), id: speaker('id', 'id-ID') };
const SHOWN = { en: formats('en-GB'), id: formats('id-ID') };
const MOMENT = { now_ms: 10_000, now_utc_ms: new Date('2026-12-01T14:20').getTime() };

const BASE: Snapshot = SCENES.sharing.snapshot;
const CARD = BASE.cards[0] as CardState;
const LEASE = (SCENES.earning.snapshot.cards[0] as CardState).lease;
const INPUT: HoldReason = { type: 'input_recent', idle_ms: 42_000, needed_ms: 300_000, source: 'X11' };

const held = (...reasons: HoldReason[]): CardState => ({ ...CARD, availability: { type: 'held', reasons } });
const leased = (phase: LeasePhase['type']): CardState => ({
  ...CARD,
  lease: LEASE === null ? null : { ...LEASE, phase: { type: phase } },
});
const second = (card: CardState): CardState => ({
  ...card,
  description: { ...card.description, uuid: 'GPU-2', index: 1, name: 'RTX 4070' },
});

function view(changes: Partial<Snapshot>): View {
  const made = applied(null, { type: 'snapshot', ...BASE, ...changes }, MOMENT.now_ms);
  if (made === null) throw new Error('a snapshot makes a view');
  return made;
}

const connecting = (last_error: string | null): Snapshot['market'] => ({
  type: 'connecting',
  url: 'http://x',
  last_error,
});

describe('the sentence', () => {
  const until = new Date('2026-12-01T15:20').getTime();
  const paused = (until_utc_ms: number | null): Partial<Snapshot> => ({
    pause: { since_utc_ms: 0, until_utc_ms },
    cards: [held({ type: 'paused', until_utc_ms })],
  });
  test.each<[string, Partial<Snapshot>, string, string]>([
    ['one card earns', { cards: [leased('running')] }, 'Earning on your card.', 'Menghasilkan dari 1 dari 1 kartu.'],
    [
      'one of two earns',
      { cards: [leased('running'), second(held(INPUT))] },
      'Earning on 1 of 2 cards.',
      'Menghasilkan dari 1 dari 2 kartu.',
    ],
    ['a job is fetched', { cards: [leased('fetching')] }, 'Preparing a job.', 'Menyiapkan pekerjaan.'],
    [
      'the card is given back',
      { cards: [leased('frozen')] },
      'Giving the card back to you.',
      'Kartu sedang dikembalikan kepada Anda.',
    ],
    ['a card waits', {}, 'Sharing: your card waits for a job.', 'Berbagi: 1 dari 1 kartu menunggu pekerjaan.'],
    [
      'the owner is there',
      { cards: [held(INPUT)] },
      'Not sharing: your card is held.',
      'Tidak berbagi: 1 kartu ditahan.',
    ],
    ['paused for an hour', paused(until), 'Paused until 15:20.', 'Dijeda sampai 15.20.'],
    ['paused', paused(null), 'Paused until you share again.', 'Dijeda sampai Anda berbagi lagi.'],
    ['no card', { cards: [] }, 'No graphics card was found.', 'Tidak ada kartu grafis yang ditemukan.'],
    [
      'no exchange',
      { market: { type: 'not_configured' } },
      'Not sharing: no exchange is set.',
      'Tidak berbagi: bursa belum diatur.',
    ],
    [
      'first try',
      { market: connecting(null) },
      'Not sharing yet: looking for the exchange.',
      'Belum berbagi: mencari bursa.',
    ],
    [
      'later tries',
      { market: connecting('refused') },
      'Not sharing: the exchange does not answer.',
      'Tidak berbagi: bursa tidak menjawab.',
    ],
    [
      'refused',
      { market: { type: 'refused', url: 'http://x', message: 'm' } },
      'Not sharing: the exchange refuses this PC.',
      'Tidak berbagi: bursa menolak PC ini.',
    ],
    [
      'no isolation',
      { isolation: { type: 'missing', why: 'w' } },
      'Not sharing: jobs cannot be isolated on this PC.',
      'Tidak berbagi: pekerjaan tidak dapat diisolasi di PC ini.',
    ],
    [
      'starting',
      { cards: [held({ type: 'starting' })] },
      'The agent is starting and cleans up first.',
      'Agen baru dimulai dan berbenah dulu.',
    ],
    ['stopping', { cards: [held({ type: 'stopping' })] }, 'The agent is stopping.', 'Agen sedang berhenti.'],
    [
      'a job runs on while the exchange is away',
      { cards: [leased('running')], market: connecting('x') },
      'Earning on your card.',
      'Menghasilkan dari 1 dari 1 kartu.',
    ],
  ])('%s', (_name, changes, english, indonesian) => {
    expect(sentence(view(changes), SPEAKERS.en, SHOWN.en, MOMENT)).toBe(english);
    expect(sentence(view(changes), SPEAKERS.id, SHOWN.id, MOMENT)).toBe(indonesian);
  });

  test('does not change while only numbers do, so that it is heard once', () => {
    const at = (now_ms: number): string =>
      sentence(view({ cards: [held(INPUT)] }), SPEAKERS.en, SHOWN.en, { ...MOMENT, now_ms });
    expect(at(10_000)).toBe(at(200_000));
  });
});

describe('the lines', () => {
  const told = (changes: Partial<Snapshot>, later_ms = 0): string[] =>
    lines(view(changes), SPEAKERS.en, SHOWN.en, { ...MOMENT, now_ms: MOMENT.now_ms + later_ms });
  test('count on between events', () => {
    expect(told({ cards: [held(INPUT)] })).toEqual([
      'Held because keyboard or mouse was used 42\u202fs ago; shares in 4:18.',
    ]);
    expect(told({ cards: [held(INPUT)] }, 30_000)).toEqual([
      'Held because keyboard or mouse was used 1:12 ago; shares in 3:48.',
    ]);
    expect(told({ cards: [held(INPUT)] }, 300_000)).toEqual([
      'Held because keyboard or mouse was used 5:42 ago; shares in a moment.',
    ]);
  });

  test('promise nothing while another reason holds, nobody is there to share with, or while paused', () => {
    expect(told({ cards: [held(INPUT)], market: connecting('x') })[0]).not.toContain('shares in');
    expect(told({ cards: [held(INPUT, { type: 'starting' })] })[0]).not.toContain('shares in');
    const paused = {
      pause: { since_utc_ms: 0, until_utc_ms: null },
      cards: [held({ type: 'paused', until_utc_ms: null }, INPUT)],
    };
    expect(told(paused)).toEqual(['Press Share when you want to share again.']);
  });

  test('name the card where there are several, and no more than fit', () => {
    const four = [0, 1, 2, 3].map((index) => ({
      ...held(INPUT),
      description: { ...CARD.description, uuid: `GPU-${index}`, index },
    }));
    expect(told({ cards: four })).toEqual([expect.stringMatching(/^RTX 4090 waits: /), 'And 3 more cards below.']);
  });
});

test('every reason is a clause in both languages, and says the same of the past', () => {
  const process = { gpu: 'GPU-1', pid: 7, name: null, vram_used: 2 ** 30, utilisation: null };
  const reasons: HoldReason[] = [
    INPUT,
    { type: 'signal_unknown', signal: 'input', source: 's', why: 'w' },
    { type: 'cool_off', remaining_ms: 5_000 },
    { type: 'foreign_use', process },
    { type: 'foreign_use', process, idle_for_ms: 60_000 },
    { type: 'gamepad_recent', idle_ms: 42_000, needed_ms: 300_000, source: 's' },
    { type: 'gamepad_recent', idle_ms: 300_000, needed_ms: 300_000, source: 's' },
    ...(['keeps_awake', 'camera', 'microphone', 'unknown'] as const).map((kind): HoldReason => ({
      type: 'engaged',
      kind,
      program: 'player',
    })),
    ...(['game_mode', 'fullscreen', 'steam', 'vr', 'listed', 'unknown'] as const).map((kind): HoldReason => ({
      type: 'playing',
      kind,
      program: 'game',
    })),
    { type: 'remote_session', by: 'RDP' },
    { type: 'on_battery', charge: null, least: null },
    { type: 'on_battery', charge: 40, least: null },
    { type: 'on_battery', charge: null, least: 50 },
    { type: 'on_battery', charge: 40, least: 50 },
    { type: 'metered' },
    { type: 'card_asleep' },
    { type: 'outside_schedule', opens_utc_ms: null, zone: 'UTC' },
    { type: 'outside_schedule', opens_utc_ms: 3_600_000, zone: 'UTC' },
    { type: 'schedule_unsure', why: 'w' },
    { type: 'settling', remaining_ms: 4_000 },
    { type: 'paused', until_utc_ms: null },
    { type: 'hot', temperature: 84, resume_below: 65 },
    { type: 'card_unreadable', why: 'w' },
    { type: 'no_isolation', why: 'w' },
    { type: 'settings_broken', why: 'w' },
    { type: 'starting' },
    { type: 'stopping' },
    { type: 'asleep' },
    { type: 'unknown' },
  ];
  const all = (language: 'en' | 'id'): string[] =>
    reasons.flatMap((reason) => {
      const telling = { say: SPEAKERS[language], show: SHOWN[language], since_ms: 0, now_utc_ms: 0 };
      return [
        clause(reason, { ...telling, among: false }),
        clause(reason, { ...telling, among: true }),
        pastClause(reason, telling.say),
      ];
    });
  expect(all('en')).toMatchSnapshot();
  expect(all('id')).toMatchSnapshot();
});

test('every cause of an end has its words in both languages', () => {
  const causes: EndCause[] = [
    { type: 'exited', code: 0 },
    { type: 'exited', code: 137 },
    { type: 'owner_program', name: 'game' },
    { type: 'owner_program', name: null },
    { type: 'sensor_silent', what: 'all signals' },
    { type: 'node_fault', message: 'm' },
    { type: 'job_fault', message: 'm' },
    ...(
      [
        'out_of_memory',
        'wall_limit',
        'tenant_cancelled',
        'budget_used',
        'displaced',
        'owner_input',
        'owner_command',
        'owner_rule',
        'shutdown',
        'hot',
        'card_lost',
        'grant_expired',
        'lease_expired',
        'lost',
        'agent_restarted',
        'unknown',
      ] as const
    ).map((type) => ({ type })),
  ];
  expect(causes.map((cause) => causeClause(cause, SPEAKERS.en))).toMatchSnapshot();
  expect(causes.map((cause) => causeClause(cause, SPEAKERS.id))).toMatchSnapshot();
});

describe('notices', () => {
  test('tell what needs the owner, with the agent’s own words', () => {
    const troubled = view({
      settings_problem: 'line 4',
      isolation: { type: 'missing', why: 'no cgroup v2' },
      market: connecting('refused.'),
    });
    expect(notices(troubled, SPEAKERS.en).map(({ text }) => text)).toEqual([
      'agent.toml has a mistake, so the last good settings stay in force: line 4',
      'no cgroup v2',
      'The exchange at http://x does not answer: refused. What was earned is kept; the agent goes on trying.',
    ]);
    expect(notices(view({}), SPEAKERS.en)).toEqual([]);
  });
});

describe('the view', () => {
  test('takes each event into its place, and passes over newer ones', () => {
    let now: View | null = view({});
    now = applied(now, { type: 'pause', pause: { since_utc_ms: 1, until_utc_ms: null } }, 1);
    now = applied(now, { type: 'market', link: { type: 'not_configured' } }, 2);
    now = applied(now, { type: 'settings', problem: 'line 4' }, 2);
    now = applied(now, { type: 'card', ...held(INPUT) }, 3);
    now = applied(now, { type: 'earned', ...BASE.earned, today_net: '9.000000' }, 4);
    now = applied(now, { type: 'from_the_future' } as never, 5);
    expect(now?.snapshot.pause?.since_utc_ms).toBe(1);
    expect(now?.snapshot.market.type).toBe('not_configured');
    expect(now?.snapshot.settings_problem).toBe('line 4');
    expect(now?.cards[0]).toMatchObject({ heard_ms: 3, state: { availability: { type: 'held' } } });
    expect(now?.snapshot.earned.today_net).toBe('9.000000');
  });

  test('keeps cards in the driver’s order, and knows nothing before a snapshot', () => {
    const two = applied(view({ cards: [second(CARD)] }), { type: 'card', ...CARD }, 1);
    expect(two?.cards.map(({ state }) => state.description.index)).toEqual([0, 1]);
    expect(applied(null, { type: 'pause', pause: null }, 1)).toBeNull();
  });

  test('shows the sign of its state', () => {
    expect(signOf(condition(view({ cards: [leased('running')] })))).toBe('earning');
    expect(signOf(condition(view({})))).toBe('sharing');
    expect(signOf(condition(view({ cards: [held(INPUT)] })))).toBe('paused');
    expect(signOf(condition(view({ market: connecting('x') })))).toBe('attention');
  });
});

test.each([
  ['NVIDIA GeForce RTX 4090', 'RTX 4090'],
  ['NVIDIA GeForce RTX 4090 (SIMULATED)', 'RTX 4090'],
  ['SIMULATED NVIDIA GeForce RTX 3090', 'RTX 3090'],
  ['NVIDIA H200', 'H200'],
  ['SIMULATED', 'SIMULATED'],
])('%s is called %s', (name, short) => expect(shortName(name)).toBe(short));
