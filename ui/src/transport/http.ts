// The agent over HTTP on a loopback port, with the key that came in the address. For a browser; the desktop window has its
// own way.

import type { Command } from '../bindings/Command';
import type { CommandReply } from '../bindings/CommandReply';
import type { NumberedEvent } from '../bindings/NumberedEvent';
import type { Problem } from '../bindings/Problem';
import type { StripRecord } from '../bindings/StripRecord';
import { dataOf } from './stream';
import { inOrder, TransportError, type Transport } from './transport';

const KEY = 'sela.token';

/**
 * The key from `#token=…`, remembered for this tab and taken out of the address, so that it is neither bookmarked nor seen
 * over a shoulder. Without one in the address, the remembered one.
 */
export function takeToken(address: Location, history: History, memory: Storage): string | null {
  const token = new URLSearchParams(address.hash.slice(1)).get('token');
  if (token === null) return memory.getItem(KEY);
  memory.setItem(KEY, token);
  history.replaceState(history.state, '', address.pathname + address.search);
  return token;
}

export class HttpTransport implements Transport {
  constructor(
    private readonly base: string,
    private readonly token: string | null,
    private readonly fetch: typeof globalThis.fetch = globalThis.fetch.bind(globalThis),
  ) {}

  events(stop: AbortSignal): AsyncIterable<NumberedEvent> {
    return inOrder(this.eventsAsSent(stop));
  }

  async command(command: Command): Promise<CommandReply> {
    return read<CommandReply>(await this.ask('/v1/commands', { method: 'POST', body: JSON.stringify(command) }));
  }

  async strip(from_utc_ms: number, to_utc_ms: number): Promise<StripRecord | null> {
    const path = `/v1/strip?from_utc_ms=${from_utc_ms}&to_utc_ms=${to_utc_ms}`;
    const response = await this.send(path, {});
    if (response.status === 404) return null;
    return read<StripRecord>(await checked(response));
  }

  private async *eventsAsSent(stop: AbortSignal): AsyncGenerator<NumberedEvent> {
    const response = await this.ask('/v1/events', { signal: stop, headers: { accept: 'text/event-stream' } });
    if (response.body === null) throw new TransportError('broken', 'the agent sent no stream');
    try {
      for await (const text of dataOf(response.body)) yield JSON.parse(text) as NumberedEvent;
    } catch (error) {
      if (stop.aborted) return;
      throw new TransportError(error instanceof SyntaxError ? 'broken' : 'not_running', String(error));
    }
  }

  private async ask(path: string, request: RequestInit): Promise<Response> {
    return checked(await this.send(path, request));
  }

  private async send(path: string, request: RequestInit): Promise<Response> {
    const headers = new Headers(request.headers);
    if (this.token !== null) headers.set('authorization', `Bearer ${this.token}`);
    if (request.body !== undefined) headers.set('content-type', 'application/json');
    try {
      return await this.fetch(this.base + path, { ...request, headers, cache: 'no-store' });
    } catch (error) {
      throw new TransportError('not_running', `${this.base}${path}: ${String(error)}`);
    }
  }
}

async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  const problem = await response
    .json()
    .then((body: unknown) => body as Partial<Problem>)
    .catch(() => ({}) as Partial<Problem>);
  const detail = problem.detail ?? `status ${response.status}`;
  if (response.status === 401 || response.status === 403) throw new TransportError('not_allowed', detail);
  // A proxy before the agent says so, or the agent as it leaves.
  if (response.status >= 502) throw new TransportError('not_running', detail);
  throw new TransportError('refused', detail);
}

async function read<T>(response: Response): Promise<T> {
  try {
    return (await response.json()) as T;
  } catch (error) {
    throw new TransportError('broken', String(error));
  }
}
