// Both ways to the agent: what is sent, how answers and failures read, and that no event is missed in silence.

import { describe, expect, test } from 'vitest';
import type { NumberedEvent } from '../bindings/NumberedEvent';
import { HttpTransport, takeToken } from './http';
import { dataOf } from './stream';
import { inOrder, TransportError, type Trouble } from './transport';

const SNAPSHOT = { type: 'snapshot' } as NumberedEvent['event'];
const PAUSE: NumberedEvent['event'] = { type: 'pause', pause: null };

async function all<T>(events: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const event of events) found.push(event);
  return found;
}

async function* numbered(...numbers: [number, NumberedEvent['event']][]): AsyncGenerator<NumberedEvent> {
  for (const [number, event] of numbers) yield { number, event };
}

function body(...parts: string[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
      controller.close();
    },
  });
}

/** What was asked of the agent, and an answer in its place. */
function answering(answer: () => Response | Promise<Response>) {
  const asked: { path: string; request: RequestInit }[] = [];
  const fetch = (path: string | URL | Request, request: RequestInit = {}): Promise<Response> => {
    asked.push({ path: String(path), request });
    return Promise.resolve().then(answer);
  };
  return { asked, transport: new HttpTransport('http://127.0.0.1:7351', 'key', fetch as typeof globalThis.fetch) };
}

async function troubleOf(promise: Promise<unknown>): Promise<[Trouble, string]> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof TransportError) return [error.trouble, error.message];
  }
  throw new Error('no TransportError came');
}

describe('the stream', () => {
  test('reads an event cut at any byte, and passes over signs of life', async () => {
    const text = ': alive\n\nevent: pause\r\ndata: {"name":"kartu ▟ — “a”"}\r\n\r\n';
    const bytes = new TextEncoder().encode(text);
    for (let cut = 0; cut <= bytes.length; cut += 1) {
      const cutBody = new ReadableStream<Uint8Array>({
        start(controller) {
          controller.enqueue(bytes.slice(0, cut));
          controller.enqueue(bytes.slice(cut));
          controller.close();
        },
      });
      expect(await all(dataOf(cutBody)), `cut at ${cut}`).toEqual(['{"name":"kartu ▟ — “a”"}']);
    }
  });

  test('refuses an event without end', async () => {
    const endless = new ReadableStream<Uint8Array>({
      pull(controller) {
        controller.enqueue(new Uint8Array(1 << 20).fill(120));
      },
    });
    await expect(all(dataOf(endless))).rejects.toThrow('4 MiB');
  });

  test('is closed when its reader leaves early', async () => {
    let closed = false;
    const open = new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(new TextEncoder().encode('data: 1\n\n'));
      },
      cancel() {
        closed = true;
      },
    });
    for await (const data of dataOf(open)) {
      expect(data).toBe('1');
      break;
    }
    expect(closed).toBe(true);
  });
});

describe('order', () => {
  test('numbers that follow pass', async () => {
    expect(await all(inOrder(numbered([7, SNAPSHOT], [8, PAUSE], [9, SNAPSHOT])))).toHaveLength(3);
  });

  test.each([
    ['a gap', numbered([1, SNAPSHOT], [3, PAUSE]), 'event 3 came after 1'],
    ['a repetition', numbered([1, SNAPSHOT], [1, PAUSE]), 'event 1 came after 1'],
    ['no snapshot first', numbered([1, PAUSE]), 'did not begin with a snapshot'],
  ])('%s ends the stream, so that it is begun anew', async (_name, events, message) => {
    expect(await troubleOf(all(inOrder(events)))).toEqual(['broken', expect.stringContaining(message)]);
  });
});

describe('HTTP', () => {
  test('sends the key and the command, and reads the reply', async () => {
    const { asked, transport } = answering(() => Response.json({ type: 'refused', message: 'no' }));
    expect(await transport.command({ type: 'pause', for_ms: 3_600_000 })).toEqual({ type: 'refused', message: 'no' });
    const [{ path, request }] = asked as [(typeof asked)[number]];
    expect(path).toBe('http://127.0.0.1:7351/v1/commands');
    expect(request.method).toBe('POST');
    expect(request.body).toBe('{"type":"pause","for_ms":3600000}');
    expect(new Headers(request.headers).get('authorization')).toBe('Bearer key');
    expect(new Headers(request.headers).get('content-type')).toBe('application/json');
  });

  test('gives the events of the stream', async () => {
    const parts = [1, 2].map((number) => `data: ${JSON.stringify({ number, event: SNAPSHOT })}\n\n`);
    const { transport } = answering(() => new Response(body(...parts)));
    expect(await all(transport.events(new AbortController().signal))).toHaveLength(2);
  });

  test('an agent without a record of the day says so by 404', async () => {
    const problem = { code: 'unknown_path', status: 404, detail: 'nothing at this path' };
    const { asked, transport } = answering(() => Response.json(problem, { status: 404 }));
    expect(await transport.strip(5, 9)).toBeNull();
    expect(asked[0]?.path).toContain('/v1/strip?from_utc_ms=5&to_utc_ms=9');
  });

  const problem = (status: number) => () => Response.json({ code: 'x', status, detail: 'what to do' }, { status });
  test.each<[string, () => Response, Trouble, string]>([
    [
      'nobody listens',
      () => {
        throw new TypeError('Failed to fetch');
      },
      'not_running',
      'Failed to fetch',
    ],
    ['a wrong key', problem(401), 'not_allowed', 'what to do'],
    ['another site’s page', problem(403), 'not_allowed', 'what to do'],
    ['the agent is stopping', problem(503), 'not_running', 'what to do'],
    ['a command that does not read', problem(400), 'refused', 'what to do'],
    ['an error without a body', () => new Response('oops', { status: 500 }), 'refused', 'status 500'],
    ['an answer that is no JSON', () => new Response('<html>'), 'broken', ''],
  ])('%s', async (_name, answer, trouble, message) => {
    const { transport } = answering(answer);
    expect(await troubleOf(transport.command({ type: 'resume' }))).toEqual([trouble, expect.stringContaining(message)]);
  });

  test('an event that is no JSON is broken; a line that breaks off is an agent that left', async () => {
    const garbled = answering(() => new Response(body('data: {\n\n')));
    expect((await troubleOf(all(garbled.transport.events(new AbortController().signal))))[0]).toBe('broken');
    const cut = answering(() => new Response(new ReadableStream({ start: (it) => it.error(new TypeError('reset')) })));
    expect((await troubleOf(all(cut.transport.events(new AbortController().signal))))[0]).toBe('not_running');
  });
});

describe('the key', () => {
  const history = (): History & { urls: string[] } => {
    const urls: string[] = [];
    const replaceState = (_state: unknown, _unused: string, url: string): void => void urls.push(url);
    return { urls, state: null, replaceState } as unknown as History & { urls: string[] };
  };

  test('is taken out of the address and remembered for the tab', () => {
    window.sessionStorage.clear();
    const past = history();
    const address = new URL('http://127.0.0.1:7351/?lang=id#token=abc') as unknown as Location;
    expect(takeToken(address, past, window.sessionStorage)).toBe('abc');
    expect(past.urls).toEqual(['/?lang=id']);
    const later = new URL('http://127.0.0.1:7351/') as unknown as Location;
    expect(takeToken(later, past, window.sessionStorage)).toBe('abc');
  });

  test('is missing where none ever came', () => {
    window.sessionStorage.clear();
    expect(takeToken(new URL('http://x/#home') as unknown as Location, history(), window.sessionStorage)).toBeNull();
  });
});
