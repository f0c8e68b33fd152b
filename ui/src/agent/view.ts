// What the window knows of the agent, as a value: a snapshot, and what events did to it. Pure; when something was heard is
// passed in, on the page's own steady clock, so that countdowns go on between events.

import type { CardState } from '../bindings/CardState';
import type { Event } from '../bindings/Event';
import type { Snapshot } from '../bindings/Snapshot';
import type { YieldMeasure } from '../bindings/YieldMeasure';

/** One card, and when (`performance.now()`, milliseconds) it was told. */
export interface HeardCard {
  readonly state: CardState;
  readonly heard_ms: number;
}

export interface View {
  /** Everything but the cards, whose newest state is in `cards`. */
  readonly snapshot: Omit<Snapshot, 'cards'>;
  /** In the driver's order. */
  readonly cards: readonly HeardCard[];
  /** Given back while this window watched, oldest first, no more than `YIELDS_KEPT`. */
  readonly yields: readonly YieldMeasure[];
}

const YIELDS_KEPT = 500;

/** The view after an event. Without a view only a snapshot makes one. */
export function applied(view: View | null, event: Event, heard_ms: number): View | null {
  if (event.type === 'snapshot') {
    const { cards, ...snapshot } = event;
    return { snapshot, cards: cards.map((state) => ({ state, heard_ms })), yields: view?.yields ?? [] };
  }
  if (view === null) return null;
  switch (event.type) {
    case 'card':
      return { ...view, cards: withCard(view.cards, { state: event, heard_ms }) };
    case 'market':
      return { ...view, snapshot: { ...view.snapshot, market: event.link } };
    case 'pause':
      return { ...view, snapshot: { ...view.snapshot, pause: event.pause } };
    case 'settings':
      return { ...view, snapshot: { ...view.snapshot, settings_problem: event.problem } };
    case 'signals':
      return { ...view, snapshot: { ...view.snapshot, signals: event } };
    case 'earned':
      return { ...view, snapshot: { ...view.snapshot, earned: event } };
    case 'yielded':
      return { ...view, yields: [...view.yields, event].slice(-YIELDS_KEPT) };
    case 'unknown':
      return view;
    default:
      return newer(event, view);
  }
}

/** An event that a newer agent sends is passed over; that none of ours is forgotten, the compiler sees by `never`. */
function newer(_event: never, view: View): View {
  return view;
}

function withCard(cards: readonly HeardCard[], card: HeardCard): readonly HeardCard[] {
  const known = cards.some((other) => other.state.description.uuid === card.state.description.uuid);
  const next = known
    ? cards.map((other) => (other.state.description.uuid === card.state.description.uuid ? card : other))
    : [...cards, card];
  return next.toSorted((a, b) => a.state.description.index - b.state.description.index);
}
