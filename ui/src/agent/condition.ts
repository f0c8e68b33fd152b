// What a card, and the whole PC, is doing at this moment, in one word. The agent decided; this only names it for display.

import type { LeasePhase } from '../bindings/LeasePhase';
import type { MarketLink } from '../bindings/MarketLink';
import type { CardState } from '../bindings/CardState';
import type { View } from './view';

export type CardCondition = 'earning' | 'preparing' | 'giving_back' | 'offered' | 'waiting' | 'paused' | 'held';

export function cardCondition(card: CardState, market: MarketLink): CardCondition {
  if (card.lease !== null) return leaseCondition(card.lease.phase.type);
  if (card.availability.type === 'held')
    return card.availability.reasons.some((reason) => reason.type === 'paused') ? 'paused' : 'held';
  return market.type === 'connected' ? 'offered' : 'waiting';
}

function leaseCondition(phase: LeasePhase['type']): CardCondition {
  switch (phase) {
    case 'fetching':
    case 'starting':
      return 'preparing';
    case 'running':
      return 'earning';
    case 'frozen':
    case 'saving':
    case 'ending':
      return 'giving_back';
    case 'uploading':
    case 'unknown':
      return 'preparing';
  }
}

/** The PC's state: what the first sentence of the page says. Ordered from what matters most. */
export type Condition =
  | 'no_card'
  | 'earning'
  | 'giving_back'
  | 'preparing'
  | 'paused'
  | 'no_isolation'
  | 'no_exchange'
  | 'refused'
  | 'unreachable'
  | 'looking'
  | 'starting'
  | 'stopping'
  | 'sharing'
  | 'held';

export function condition(view: View): Condition {
  const { snapshot } = view;
  const cards = view.cards.map(({ state }) => state);
  const conditions = cards.map((card) => cardCondition(card, snapshot.market));
  const everywhere = (reason: string): boolean =>
    cards.every(
      ({ availability }) => availability.type === 'held' && availability.reasons.some(({ type }) => type === reason),
    );
  if (cards.length === 0) return 'no_card';
  if (conditions.includes('earning')) return 'earning';
  if (conditions.includes('giving_back')) return 'giving_back';
  if (conditions.includes('preparing')) return 'preparing';
  if (everywhere('stopping')) return 'stopping';
  if (everywhere('starting')) return 'starting';
  if (snapshot.pause !== null) return 'paused';
  if (snapshot.isolation.type === 'missing') return 'no_isolation';
  if (snapshot.market.type !== 'connected') return unlinked(snapshot.market);
  return conditions.includes('offered') ? 'sharing' : 'held';
}

function unlinked(market: Exclude<MarketLink, { type: 'connected' }>): Condition {
  switch (market.type) {
    case 'not_configured':
      return 'no_exchange';
    case 'refused':
      return 'refused';
    case 'connecting':
      return market.last_error === null ? 'looking' : 'unreachable';
  }
}

/** What the sign shows for a state (look.md): hollow, filled, a bar across, a notch above. */
export type SignState = 'sharing' | 'earning' | 'paused' | 'attention';

export function signOf(state: Condition): SignState {
  switch (state) {
    case 'earning':
    case 'preparing':
      return 'earning';
    case 'sharing':
      return 'sharing';
    case 'paused':
    case 'held':
    case 'giving_back':
    case 'starting':
    case 'stopping':
    case 'looking':
      return 'paused';
    case 'no_card':
    case 'no_isolation':
    case 'no_exchange':
    case 'refused':
    case 'unreachable':
      return 'attention';
  }
}
