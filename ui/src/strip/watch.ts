// What this window saw of the cards while it was open, as stretches like those that the agent keeps. Pure: a view and a
// moment in, the longer record out. It is lost with the window; the agent's own record is the one that lasts.

import type { CardState } from '../bindings/CardState';
import type { Stretch } from '../bindings/Stretch';
import type { View } from '../agent/view';

export interface Watch {
  /** Oldest first. */
  readonly stretches: readonly Stretch[];
  /** When watching began; `null` before the first view. */
  readonly since_utc_ms: number | null;
}

/** The page was asleep (a closed lid, a suspended tab) when nothing was noted for so long: that time is not known. */
const LONGEST_SILENCE_MS = 15_000;

export function watched(watch: Watch, view: View, now_utc_ms: number): Watch {
  const open = new Map<string, Stretch>();
  for (const stretch of watch.stretches) open.set(stretch.gpu, stretch);
  const current = new Map(view.cards.map(({ state }) => [state.description.uuid, stretchOf(state, now_utc_ms)]));
  const kept: Stretch[] = [];
  for (const stretch of watch.stretches) {
    const next = current.get(stretch.gpu);
    const goesOn = open.get(stretch.gpu) === stretch && next !== undefined && follows(stretch, now_utc_ms);
    if (!goesOn) kept.push(stretch);
    else if (isSame(stretch, next)) {
      kept.push({ ...stretch, to_utc_ms: Math.max(stretch.to_utc_ms, now_utc_ms) });
      current.delete(stretch.gpu);
    } else kept.push({ ...stretch, to_utc_ms: Math.max(stretch.to_utc_ms, now_utc_ms) });
  }
  return { stretches: [...kept, ...current.values()], since_utc_ms: watch.since_utc_ms ?? now_utc_ms };
}

const follows = (stretch: Stretch, now_utc_ms: number): boolean => now_utc_ms - stretch.to_utc_ms <= LONGEST_SILENCE_MS;

function stretchOf(card: CardState, now_utc_ms: number): Stretch {
  const { availability, lease } = card;
  return {
    gpu: card.description.uuid,
    from_utc_ms: now_utc_ms,
    to_utc_ms: now_utc_ms,
    held: lease === null && availability.type === 'held' ? (availability.reasons[0] ?? { type: 'unknown' }) : null,
    sold: lease === null ? null : { lease: lease.lease, job: lease.job, name: lease.name, price: lease.price },
  };
}

/** Of one kind: the numbers of a reason change each second and make no new stretch. */
function isSame(a: Stretch, b: Stretch): boolean {
  return a.sold?.lease === b.sold?.lease && a.held?.type === b.held?.type;
}
