// The line to the agent: what the window does when it breaks, comes back, or is of another version.

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { SCENES } from '../../browser/scenes';
import type { NumberedEvent } from '../bindings/NumberedEvent';
import type { Snapshot } from '../bindings/Snapshot';
import { TransportError, type Transport, type Trouble } from '../transport/transport';
import { Agent } from './agent.svelte';

const SNAPSHOT: Snapshot = SCENES.sharing.snapshot;
const first = (changes: Partial<Snapshot> = {}): NumberedEvent => ({
  number: 1,
  event: { type: 'snapshot', ...SNAPSHOT, ...changes },
});

/** One try to open the stream: its events, then how it ends. */
interface Try {
  events?: NumberedEvent[];
  then: Trouble | 'left' | 'open';
}

function scripted(tries: Try[]): Transport & { opened: number } {
  return {
    opened: 0,
    async *events(stop) {
      const now = tries[this.opened] ?? { then: 'open' as const };
      this.opened += 1;
      yield* now.events ?? [];
      if (now.then === 'left') return;
      if (now.then !== 'open') throw new TransportError(now.then, 'why');
      await new Promise<void>((resolve) => stop.addEventListener('abort', () => resolve()));
    },
    command: () => Promise.reject(new TransportError('not_running', 'gone')),
    strip: () => Promise.resolve(null),
  };
}

let stop: AbortController;
beforeEach(() => {
  vi.useFakeTimers();
  stop = new AbortController();
});
afterEach(() => {
  stop.abort();
  vi.useRealTimers();
});

async function started(tries: Try[]): Promise<{ agent: Agent; transport: ReturnType<typeof scripted> }> {
  const transport = scripted(tries);
  const agent = new Agent(transport);
  void agent.run(stop.signal);
  await vi.advanceTimersByTimeAsync(0);
  return { agent, transport };
}

describe('the line', () => {
  test('is live with the first snapshot', async () => {
    const { agent } = await started([{ events: [first()], then: 'open' }]);
    expect(agent.line.type).toBe('live');
    expect(agent.view?.cards).toHaveLength(1);
    expect(agent.watch.stretches).toHaveLength(1);
  });

  test('looks again, ever less often, and at once when told', async () => {
    const { agent, transport } = await started(Array.from({ length: 20 }, () => ({ then: 'not_running' as const })));
    expect(agent.line).toMatchObject({ type: 'lost', why: 'why' });
    await vi.advanceTimersByTimeAsync(500 + 1_000 + 2_000);
    expect(transport.opened).toBe(4);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(transport.opened).toBeLessThan(4 + 60 / 4);
    const before = transport.opened;
    agent.again();
    await vi.advanceTimersByTimeAsync(0);
    expect(transport.opened).toBe(before + 1);
  });

  test('keeps what was heard in sight while it is down, and since when', async () => {
    const { agent } = await started([
      { events: [first()], then: 'left' },
      { then: 'not_running' },
      { then: 'not_running' },
    ]);
    expect(agent.line.type).toBe('lost');
    const since = agent.line.type === 'lost' ? agent.line.since_ms : -1;
    await vi.advanceTimersByTimeAsync(500);
    expect(agent.line).toMatchObject({ type: 'lost', since_ms: since });
    expect(agent.view).not.toBeNull();
  });

  test('a gap in the events leads to a new stream, not to an error page', async () => {
    const { agent, transport } = await started([
      { events: [first()], then: 'broken' },
      { events: [first()], then: 'open' },
    ]);
    expect(agent.line.type).toBe('lost');
    await vi.advanceTimersByTimeAsync(500);
    expect([agent.line.type, transport.opened]).toEqual(['live', 2]);
  });

  test.each<[Try, object]>([
    [
      { events: [first({ protocol: 2, agent_version: '9.0.0' })], then: 'open' },
      { type: 'other_version', agent_version: '9.0.0', newer: true },
    ],
    [
      { events: [first({ protocol: 0 })], then: 'open' },
      { type: 'other_version', newer: false },
    ],
    [{ then: 'not_allowed' }, { type: 'not_allowed' }],
    [{ then: 'broken' }, { type: 'broken' }],
  ])('tells what is wrong: %#', async (only, expected) => {
    const { agent } = await started([only]);
    expect(agent.line).toMatchObject(expected);
  });

  test('recovers from another version when the agent was updated', async () => {
    const { agent } = await started([
      { events: [first({ protocol: 0 })], then: 'open' },
      { events: [first()], then: 'open' },
    ]);
    await vi.advanceTimersByTimeAsync(500);
    expect(agent.line.type).toBe('live');
  });

  test('a command that could not be sent says why', async () => {
    const { agent } = await started([{ events: [first()], then: 'open' }]);
    expect(await agent.command({ type: 'resume' })).toBe('gone');
  });
});
