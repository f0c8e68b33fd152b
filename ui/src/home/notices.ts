// What needs the owner: a sentence each, with what to do. Not the reasons of single cards, which stand on the cards.

import type { View } from '../agent/view';
import type { Say } from '../words/say';

export interface Notice {
  readonly key: string;
  readonly text: string;
}

export function notices(view: View, say: Say): Notice[] {
  const { market, settings_problem, isolation } = view.snapshot;
  const found: Notice[] = [];
  if (settings_problem !== null)
    found.push({ key: 'settings', text: say('notice.settings', { why: settings_problem }) });
  if (isolation.type === 'missing')
    found.push({ key: 'isolation', text: say('notice.no_isolation', { why: isolation.why }) });
  switch (market.type) {
    case 'not_configured':
      found.push({ key: 'market', text: say('notice.no_exchange') });
      break;
    case 'refused':
      found.push({ key: 'market', text: say('notice.refused', { url: market.url, why: market.message }) });
      break;
    case 'connecting':
      if (market.last_error !== null)
        found.push({
          key: 'market',
          text: say('notice.unreachable_why', { url: market.url, why: market.last_error.replace(/[.\s]+$/, '') }),
        });
      break;
    case 'connected':
      break;
  }
  return found;
}
