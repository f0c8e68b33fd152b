// The window's line to the agent: keeps the stream open, begins anew when it breaks, and holds the newest view. What is
// shown of it is the pages' own.

import type { Command } from '../bindings/Command';
import type { StripRecord } from '../bindings/StripRecord';
import { LOCAL_PROTOCOL, TransportError, type Transport } from '../transport/transport';
import { startOfDay } from '../words/day';
import { watched, type Watch } from '../strip/watch';
import { applied, type View } from './view';

/** How the line stands. */
export type Line =
  | { type: 'asking' }
  | { type: 'live' }
  /** Nobody answers. `since_ms`: since when (`performance.now()`); `again_ms`: when it is tried again. */
  | { type: 'lost'; why: string; since_ms: number; again_ms: number }
  | { type: 'not_allowed'; why: string }
  | { type: 'other_version'; agent_version: string; newer: boolean }
  | { type: 'broken'; why: string };

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 10_000;

export class Agent {
  line: Line = $state.raw({ type: 'asking' });
  view: View | null = $state.raw(null);
  /** What this window saw of the cards itself: the newest end of the strip. */
  watch: Watch = $state.raw({ stretches: [], since_utc_ms: null });
  /** What the agent remembers of today; `null` where it keeps no record. */
  record: StripRecord | null = $state.raw(null);
  /** Whole seconds pass here: everything that counts up or down reads it. */
  now_ms: number = $state(performance.now());

  private pause_ms = FIRST_PAUSE_MS;
  private wake: () => void = () => undefined;

  constructor(private readonly transport: Transport) {}

  /** Runs until `stop`; once in the life of a page. */
  async run(stop: AbortSignal): Promise<void> {
    const ticking = setInterval(() => this.tick(), 1000);
    stop.addEventListener('abort', () => {
      clearInterval(ticking);
      this.wake();
    });
    while (!stop.aborted) {
      await this.watchOnce(stop);
      if (!stop.aborted) await this.rest();
    }
  }

  /** Does not wait for the next try. */
  again(): void {
    this.pause_ms = FIRST_PAUSE_MS;
    this.wake();
  }

  /** Tells the agent what its owner wants; the reason in words where it was not done. */
  async command(command: Command): Promise<string | null> {
    try {
      const reply = await this.transport.command(command);
      return reply.type === 'refused' ? reply.message : null;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  /** UTC milliseconds at the page's `at_ms`, by the agent's clock as far as it is known. */
  utcAt(at_ms: number): number {
    return Math.round(Date.now() + (at_ms - performance.now()));
  }

  private async watchOnce(stop: AbortSignal): Promise<void> {
    const stream = new AbortController();
    const cut = (): void => stream.abort();
    stop.addEventListener('abort', cut);
    try {
      for await (const { event } of this.transport.events(stream.signal)) {
        if (event.type === 'snapshot' && event.protocol !== LOCAL_PROTOCOL) {
          const newer = event.protocol > LOCAL_PROTOCOL;
          this.line = { type: 'other_version', agent_version: event.agent_version, newer };
          return;
        }
        this.hear(event);
      }
      this.lose('');
    } catch (error) {
      this.fail(error);
    } finally {
      cut();
      stop.removeEventListener('abort', cut);
    }
  }

  private hear(event: Parameters<typeof applied>[1]): void {
    const heard_ms = performance.now();
    this.now_ms = heard_ms;
    this.view = applied(this.view, event, heard_ms);
    this.noteStrip();
    if (event.type !== 'snapshot') return;
    this.line = { type: 'live' };
    this.pause_ms = FIRST_PAUSE_MS;
    void this.readRecord();
  }

  private async readRecord(): Promise<void> {
    const now = this.utcAt(performance.now());
    try {
      this.record = await this.transport.strip(startOfDay(now), now);
    } catch {
      // The strip then shows what this window saw itself, and says so; the stream will tell if the agent is gone.
      this.record = null;
    }
  }

  private noteStrip(): void {
    if (this.view === null) return;
    this.watch = watched(this.watch, this.view, this.utcAt(performance.now()));
  }

  private tick(): void {
    this.now_ms = performance.now();
    if (this.line.type === 'live') this.noteStrip();
  }

  private fail(error: unknown): void {
    const why = error instanceof Error ? error.message : String(error);
    const trouble = error instanceof TransportError ? error.trouble : 'broken';
    switch (trouble) {
      case 'not_running':
        return this.lose(why);
      case 'not_allowed':
        this.line = { type: 'not_allowed', why };
        return;
      case 'refused':
      case 'broken':
        // A stream that broke off is begun anew; only what never read at all takes the page.
        if (this.view === null) this.line = { type: 'broken', why };
        else this.lose(why);
    }
  }

  private lose(why: string): void {
    const now = performance.now();
    const since_ms = this.line.type === 'lost' ? this.line.since_ms : now;
    this.line = { type: 'lost', why, since_ms, again_ms: now + this.pause_ms };
  }

  private async rest(): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, this.pause_ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.pause_ms = Math.min(this.pause_ms * 2, LONGEST_PAUSE_MS);
  }
}
