// The desktop's way to the agent, against the app's side of the bridge as the desktop's own mocks give it.

import { clearMocks, mockIPC } from '@tauri-apps/api/mocks';
import type { Channel } from '@tauri-apps/api/core';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { DesktopTransport, type Watched } from './desktop';
import { TransportError } from './transport';

afterEach(() => clearMocks());

const snapshot = (number: number): Watched => ({
  type: 'event',
  event: { number, event: { type: 'snapshot' } as never },
});

/** An app that sends these messages into the channel, and writes down what it was asked. */
function app(messages: Watched[]): string[] {
  const asked: string[] = [];
  mockIPC((command, parts) => {
    asked.push(command);
    if (command === 'agent_watch') {
      const { channel } = parts as unknown as { channel: Channel<Watched> };
      for (const message of messages) channel.onmessage(message);
      return 4;
    }
    if (command === 'agent_unwatch') expect(parts).toEqual({ watching: 4 });
    return null;
  });
  return asked;
}

async function numbers(stop = new AbortController()): Promise<number[]> {
  const found: number[] = [];
  for await (const event of new DesktopTransport().events(stop.signal)) found.push(event.number);
  return found;
}

describe('the desktop transport', () => {
  test('gives the events that the app sends, until the agent leaves', async () => {
    const asked = app([snapshot(1), snapshot(2), { type: 'ended', trouble: null }]);
    expect(await numbers()).toEqual([1, 2]);
    expect(asked).toEqual(['agent_watch', 'agent_unwatch']);
  });

  test('says once when the first event is on the screen, so that how long that takes can be measured', async () => {
    const asked = app([snapshot(1), snapshot(2)]);
    const stop = new AbortController();
    const reading = numbers(stop);
    await vi.waitFor(() => expect(asked).toContain('agent_shown'));
    stop.abort();
    await reading;
    expect(asked.filter((command) => command === 'agent_shown')).toHaveLength(1);
  });

  test('throws what the app says went wrong', async () => {
    app([{ type: 'ended', trouble: { trouble: 'not_running', message: 'nobody listens' } }]);
    await expect(numbers()).rejects.toMatchObject({ trouble: 'not_running', message: 'nobody listens' });
  });

  test('stops watching when the page goes, even between events', async () => {
    const asked = app([snapshot(1)]);
    const stop = new AbortController();
    const reading = numbers(stop);
    await new Promise((resolve) => setTimeout(resolve));
    stop.abort();
    expect(await reading).toEqual([1]);
    expect(asked).toContain('agent_unwatch');
  });

  test('passes commands on, and failures of the bridge are broken, not silent', async () => {
    mockIPC((command, parts) => {
      expect([command, parts]).toEqual(['agent_command', { command: { type: 'resume' } }]);
      return { type: 'done' };
    });
    expect(await new DesktopTransport().command({ type: 'resume' })).toEqual({ type: 'done' });
    mockIPC(() => {
      throw new Error('no such command');
    });
    const failure = await new DesktopTransport().command({ type: 'resume' }).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(TransportError);
    expect(failure).toMatchObject({ trouble: 'broken' });
  });
});
