// The agent through the desktop app, which holds the socket. The only file that may import the desktop's API.

import { Channel, invoke, isTauri } from '@tauri-apps/api/core';
import type { Command } from '../bindings/Command';
import type { CommandReply } from '../bindings/CommandReply';
import type { NumberedEvent } from '../bindings/NumberedEvent';
import type { StripRecord } from '../bindings/StripRecord';
import { inOrder, TransportError, type Transport, type Trouble } from './transport';

/** What the app sends into the channel of `agent_watch`. */
export type Watched =
  | { type: 'event'; event: NumberedEvent }
  /** The stream has ended; nothing follows. Without trouble the agent left in peace. */
  | { type: 'ended'; trouble: DesktopTrouble | null };

/** How a command of the app fails. */
export interface DesktopTrouble {
  trouble: Trouble;
  message: string;
}

export const isDesktop = isTauri;

export class DesktopTransport implements Transport {
  events(stop: AbortSignal): AsyncIterable<NumberedEvent> {
    return inOrder(watch(stop));
  }

  async command(command: Command): Promise<CommandReply> {
    return ask<CommandReply>('agent_command', { command });
  }

  async strip(from_utc_ms: number, to_utc_ms: number): Promise<StripRecord | null> {
    return ask<StripRecord | null>('agent_strip', { fromUtcMs: from_utc_ms, toUtcMs: to_utc_ms });
  }
}

async function* watch(stop: AbortSignal): AsyncGenerator<NumberedEvent> {
  const arrived: Watched[] = [];
  let wake: () => void = () => undefined;
  const channel = new Channel<Watched>();
  channel.onmessage = (message) => {
    arrived.push(message);
    wake();
  };
  const stopped = (): void => wake();
  stop.addEventListener('abort', stopped);
  const watching = await ask<number>('agent_watch', { channel });
  let heard = false;
  let over = false;
  const shown = async (): Promise<void> => {
    await afterPaint();
    // Only the app's log hears of it: nothing depends on the answer.
    if (!over) await ask<null>('agent_shown', {}).catch(() => undefined);
  };
  try {
    while (!stop.aborted) {
      const message = arrived.shift();
      if (message === undefined) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
        continue;
      }
      if (message.type === 'event') {
        yield message.event;
        if (!heard) void shown();
        heard = true;
      } else if (message.trouble === null) return;
      else throw new TransportError(message.trouble.trouble, message.trouble.message);
    }
  } finally {
    over = true;
    stop.removeEventListener('abort', stopped);
    await ask<null>('agent_unwatch', { watching }).catch(() => undefined);
  }
}

/** When what was just changed is on the screen: the frame that is drawn next has begun, and then the one after it. */
function afterPaint(): Promise<void> {
  return new Promise((painted) => {
    requestAnimationFrame(() => requestAnimationFrame(() => painted()));
  });
}

async function ask<T>(command: string, parts: Record<string, unknown>): Promise<T> {
  try {
    return await invoke<T>(command, parts);
  } catch (error) {
    throw asTransportError(error);
  }
}

function asTransportError(error: unknown): TransportError {
  const troubles: readonly string[] = ['not_running', 'not_allowed', 'refused', 'broken'];
  const said = error as Partial<DesktopTrouble> | null;
  if (typeof said === 'object' && said?.trouble !== undefined && troubles.includes(said.trouble))
    return new TransportError(said.trouble, said.message ?? '');
  return new TransportError('broken', String(error));
}
