// The first sentence of Home, and the lines below it that give the reason and the countdown. The sentence changes only with
// the state, so that a screen reader says it once; what counts is in the lines.

import { cardCondition, condition } from '../agent/condition';
import type { HeardCard, View } from '../agent/view';
import type { Formats } from '../words/format';
import type { Say } from '../words/say';
import { shortName } from './names';
import { clause } from './reasons';

export interface Moment {
  readonly now_ms: number;
  readonly now_utc_ms: number;
}

export function sentence(view: View, say: Say, show: Formats, moment: Moment): string {
  const count = view.cards.length;
  const conditions = view.cards.map(({ state }) => cardCondition(state, view.snapshot.market));
  const among = (wanted: string): number => conditions.filter((found) => found === wanted).length;
  const state = condition(view);
  switch (state) {
    case 'earning':
      return say('sentence.earning', { count, earning: among('earning') });
    case 'sharing':
      return say('sentence.sharing', { count, offered: among('offered') });
    case 'held':
      return say('sentence.held', { count });
    case 'paused': {
      const until = view.snapshot.pause?.until_utc_ms ?? null;
      return until === null
        ? say('sentence.paused')
        : say('sentence.paused_until', { time: show.moment(until, moment.now_utc_ms) });
    }
    case 'giving_back':
    case 'preparing':
    case 'no_card':
    case 'no_exchange':
    case 'looking':
    case 'unreachable':
    case 'refused':
    case 'no_isolation':
    case 'starting':
    case 'stopping':
      return say(`sentence.${state}`);
  }
}

/** At most this many lines: the cards below tell the rest. */
const LINES = 2;

/** Why each card is as it is. Cards held by the same kind of thing as the whole PC (paused, no isolation) need no line. */
export function lines(view: View, say: Say, show: Formats, moment: Moment): string[] {
  if (condition(view) === 'paused') {
    const until = view.snapshot.pause?.until_utc_ms ?? null;
    return [say(until === null ? 'line.paused' : 'line.paused_until')];
  }
  const told = view.cards
    .map((card) => line(card, view, say, show, moment))
    .filter((text): text is string => text !== null);
  if (told.length <= LINES) return told;
  return [...told.slice(0, LINES - 1), say('line.more', { count: told.length - (LINES - 1) })];
}

const SAID_BY_THE_SENTENCE = new Set(['paused', 'no_isolation', 'starting', 'stopping']);

function line(card: HeardCard, view: View, say: Say, show: Formats, moment: Moment): string | null {
  const { state, heard_ms } = card;
  const alone = view.cards.length === 1;
  const name = shortName(state.description.name);
  const since_ms = Math.max(0, moment.now_ms - heard_ms);
  switch (cardCondition(state, view.snapshot.market)) {
    case 'earning': {
      if (state.lease === null) return null;
      const job = jobName(state.lease, say);
      const time = show.span(state.lease.thawed_ms + since_ms, 'down');
      const price = show.money(state.lease.price);
      return alone
        ? say('line.earning', { job, time, price })
        : say('line.earning_card', { card: name, job, time, price });
    }
    case 'offered': {
      const price = show.money(state.floor);
      return alone ? say('line.offered', { price }) : say('line.offered_card', { card: name, price });
    }
    case 'held':
    case 'paused': {
      const reasons = state.availability.type === 'held' ? state.availability.reasons : [];
      const reason = reasons.find(({ type }) => !SAID_BY_THE_SENTENCE.has(type));
      if (reason === undefined) return null;
      const because = clause(reason, {
        say,
        show,
        since_ms,
        now_utc_ms: moment.now_utc_ms,
        among: reasons.length > 1 || view.snapshot.market.type !== 'connected',
      });
      return alone ? say('line.held', { reason: because }) : say('line.held_card', { card: name, reason: because });
    }
    case 'preparing':
    case 'giving_back':
    case 'waiting':
      return null;
  }
}

/** What its tenant called it, or enough of its id to find it. */
export function jobName(lease: { name: string | null; job: string }, say: Say): string {
  return lease.name ?? say('running.unnamed', { id: lease.job.slice(-8) });
}
