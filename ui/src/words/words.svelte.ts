// The words of the page in the language in force: `words.say` and `words.show` follow a change of language by themselves.

import { formats, type Formats } from './format';
import { tongue } from './language.svelte';
import { speaker, type Say } from './say';

class Words {
  readonly say: Say = $derived(speaker(tongue.language, tongue.locale, tongue.pseudo));
  readonly show: Formats = $derived(formats(tongue.locale));
}

export const words = new Words();
