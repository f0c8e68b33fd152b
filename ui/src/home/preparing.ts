// What is done for a job before it runs, in words: how far its image is, and that the card's memory was wiped.

import type { CardWiped } from '../bindings/CardWiped';
import type { ImageTransfer } from '../bindings/ImageTransfer';
import { written, type Formats } from '../words/format';
import type { Say } from '../words/say';

/** Bytes of the image: "812 MB of 4.0 GB", or how many so far where its source does not say how many there are. */
export function imageBytes(transfer: ImageTransfer, say: Say, show: Formats): string {
  const done = written(show.size(transfer.done));
  if (transfer.total === null) return say('running.so_far', { done });
  return say('running.done_of', { done, total: written(show.size(transfer.total)) });
}

/** Layers of the image; nothing before it has said how many it has. */
export function imageLayers(transfer: ImageTransfer, say: Say): string | null {
  if (transfer.layers === null) return null;
  return say('running.done_of', { done: String(transfer.layers_done), total: String(transfer.layers) });
}

export function wipedLine(wiped: CardWiped, say: Say, show: Formats): string {
  return say('running.wiped', { memory: written(show.memory(wiped.wiped)), span: show.measured(wiped.took_ms) });
}
