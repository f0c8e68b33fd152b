// Where everything on the gap strip lies: stretches in, rectangles out. Pure; colours and words are the component's.

import type { HoldReason } from '../bindings/HoldReason';
import type { Stretch } from '../bindings/Stretch';
import type { YieldMeasure } from '../bindings/YieldMeasure';

/** What a stretch means to its owner (look.md). */
export type BandKind = 'own' | 'held' | 'offered' | 'sold';

export interface Day {
  readonly from_utc_ms: number;
  readonly to_utc_ms: number;
}

export interface Band {
  readonly kind: BandKind;
  /** Pixels from the left edge. */
  readonly x: number;
  readonly width: number;
  /** Pixels above the baseline. */
  readonly height: number;
  readonly stretch: Stretch;
}

/** What is sold is never narrower than this, however short it was: it earned. */
const LEAST_SOLD_PX = 2;
/** Own use, idle and offered time are low, so that what is sold stands out. */
const LOW = 0.36;
const LEAST_SOLD_HEIGHT = 0.5;
/** Stretches that are closer than this touch. */
const SEAM_PX = 0.5;

/** The owner's own use of the PC, as opposed to what only keeps the card from being shared. */
const OWN: ReadonlySet<HoldReason['type']> = new Set([
  'input_recent',
  'gamepad_recent',
  'foreign_use',
  'playing',
  'engaged',
  'remote_session',
]);

export function kindOf(stretch: Stretch): BandKind {
  if (stretch.sold !== null) return 'sold';
  return stretch.held === null ? 'offered' : heldKind(stretch.held);
}

function heldKind(reason: HoldReason): BandKind {
  return OWN.has(reason.type) ? 'own' : 'held';
}

/** The highest price at which anything was sold, as a number of the asset; 0 where nothing was. */
export function highestPrice(stretches: readonly Stretch[]): number {
  return Math.max(0, ...stretches.map(({ sold }) => (sold === null ? 0 : Number(sold.price))));
}

/** Where a moment lies on a strip of `width` pixels; not limited to it. */
export const xOf = (utc_ms: number, day: Day, width: number): number =>
  ((utc_ms - day.from_utc_ms) / (day.to_utc_ms - day.from_utc_ms)) * width;

/** The bands of one card's row, left to right; those outside the day are cut off. */
export function bands(stretches: readonly Stretch[], day: Day, width: number, height: number): Band[] {
  const highest = highestPrice(stretches);
  const found = stretches
    .filter(({ from_utc_ms, to_utc_ms }) => to_utc_ms > day.from_utc_ms && from_utc_ms < day.to_utc_ms)
    .toSorted((a, b) => a.from_utc_ms - b.from_utc_ms)
    .map((stretch) => {
      const kind = kindOf(stretch);
      const left = Math.max(0, xOf(stretch.from_utc_ms, day, width));
      const right = Math.min(width, xOf(stretch.to_utc_ms, day, width));
      const least = kind === 'sold' ? LEAST_SOLD_PX : 0;
      return {
        kind,
        x: left,
        width: Math.max(least, right - left),
        height: heightOf(stretch, highest) * height,
        stretch,
      };
    });
  return found.reduce<Band[]>(withBand, []);
}

/** Neighbours of one kind are drawn as one, so that no seam tells of a change that means nothing; each sale stands alone. */
function withBand(drawn: Band[], band: Band): Band[] {
  const last = drawn.at(-1);
  const touches = last !== undefined && band.x - (last.x + last.width) < SEAM_PX;
  if (!touches || last.kind !== band.kind || band.kind === 'sold') return [...drawn, band];
  return [...drawn.slice(0, -1), { ...last, width: band.x + band.width - last.x }];
}

/** Sold: by price, from half the row for next to nothing to the whole row for the day's best. */
function heightOf({ sold }: Stretch, highest: number): number {
  if (sold === null) return LOW;
  const share = highest === 0 ? 1 : Number(sold.price) / highest;
  return LEAST_SOLD_HEIGHT + (1 - LEAST_SOLD_HEIGHT) * share;
}

/** The stretch of a moment, where one is known. */
export function stretchAt(stretches: readonly Stretch[], utc_ms: number): Stretch | null {
  return stretches.find(({ from_utc_ms, to_utc_ms }) => from_utc_ms <= utc_ms && utc_ms < to_utc_ms) ?? null;
}

/** How long of the day each kind took, in milliseconds. */
export function sums(stretches: readonly Stretch[], day: Day): Record<BandKind, number> {
  const total: Record<BandKind, number> = { own: 0, held: 0, offered: 0, sold: 0 };
  for (const stretch of stretches) {
    const span = Math.min(stretch.to_utc_ms, day.to_utc_ms) - Math.max(stretch.from_utc_ms, day.from_utc_ms);
    total[kindOf(stretch)] += Math.max(0, span);
  }
  return total;
}

/**
 * What the agent remembers, and after its end what the window saw: one record, in which nothing overlaps. The agent's last
 * stretch of a card goes on in the window's first of the same kind.
 */
export function joined(record: readonly Stretch[], watch: readonly Stretch[]): Stretch[] {
  const ends = new Map<string, number>();
  for (const { gpu, to_utc_ms } of record) ends.set(gpu, Math.max(ends.get(gpu) ?? 0, to_utc_ms));
  const later = watch.flatMap((stretch) => {
    const end = ends.get(stretch.gpu) ?? Number.NEGATIVE_INFINITY;
    if (stretch.to_utc_ms <= end) return [];
    return [{ ...stretch, from_utc_ms: Math.max(stretch.from_utc_ms, end) }];
  });
  return [...record, ...later];
}

/** Each time that a card was given back since `from_utc_ms`, once, from wherever it is known. */
export function joinedYields(sources: readonly (readonly YieldMeasure[])[], from_utc_ms: number): YieldMeasure[] {
  const seen = new Map<string, YieldMeasure>();
  for (const measure of sources.flat())
    if (measure.at_utc_ms >= from_utc_ms) seen.set(`${measure.gpu} ${measure.at_utc_ms}`, measure);
  return [...seen.values()];
}
