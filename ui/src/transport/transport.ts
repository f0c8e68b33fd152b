// What the window needs of the agent, and how it fails: the one interface that HTTP and the desktop implement. Nothing here
// knows which of them it is, and nothing else in the window may speak to the agent.

import type { Command } from '../bindings/Command';
import type { CommandReply } from '../bindings/CommandReply';
import type { NumberedEvent } from '../bindings/NumberedEvent';
import type { StripRecord } from '../bindings/StripRecord';

/** The version of the local interface that this window speaks: `LOCAL_PROTOCOL` of the agent. */
export const LOCAL_PROTOCOL = 1;

/** Why the agent did not answer as hoped. */
export type Trouble =
  /** Nobody listens. */
  | 'not_running'
  /** It listens, and this page has no key, or an old one. */
  | 'not_allowed'
  /** It answered, and said no. */
  | 'refused'
  /** What came does not read, or broke off. */
  | 'broken';

export class TransportError extends Error {
  constructor(
    readonly trouble: Trouble,
    message: string,
  ) {
    super(message);
    this.name = 'TransportError';
  }
}

export interface Transport {
  /**
   * What happens from now on; the first event is a whole snapshot. Ends when the agent leaves, throws `TransportError`
   * when it cannot be reached, or when an event is missing: then the caller begins again, with a new snapshot.
   */
  events(stop: AbortSignal): AsyncIterable<NumberedEvent>;
  command(command: Command): Promise<CommandReply>;
  /** What became of the cards in [from, to), UTC milliseconds; `null` from an agent that keeps no such record. */
  strip(from_utc_ms: number, to_utc_ms: number): Promise<StripRecord | null>;
}

/** Passes events on as long as each number follows the one before. */
export async function* inOrder(events: AsyncIterable<NumberedEvent>): AsyncGenerator<NumberedEvent> {
  let last: number | null = null;
  for await (const event of events) {
    if (last === null && event.event.type !== 'snapshot')
      throw new TransportError('broken', 'the stream did not begin with a snapshot');
    if (last !== null && event.number !== last + 1)
      throw new TransportError('broken', `event ${event.number} came after ${last}`);
    last = event.number;
    yield event;
  }
}
