// Which language the window speaks. The first of the browser's languages that we have; the owner may choose another, which
// this computer remembers.

export const LANGUAGES = { en: 'English', id: 'Bahasa Indonesia' } as const;
export type Language = keyof typeof LANGUAGES;

const KEY = 'sela.language';
/** Every text in brackets and a third longer: shows texts that were forgotten, and places that are too narrow. */
const PSEUDO = 'qps';

function known(tag: string | null): tag is Language {
  return tag !== null && Object.hasOwn(LANGUAGES, tag);
}

/** The language and the locale (for numbers and times) that fit best: the region of the browser's, where it has the language. */
export function chosen(asked: string | null, wanted: readonly string[]): { language: Language; locale: string } {
  const language = known(asked) ? asked : (wanted.map((tag) => tag.split('-')[0] ?? '').find(known) ?? 'en');
  const locale = wanted.find((tag) => tag === language || tag.startsWith(`${language}-`)) ?? language;
  return { language, locale };
}

class Tongue {
  private asked: string | null = $state(null);
  readonly pseudo: boolean;

  constructor() {
    const inAddress = new URLSearchParams(window.location.search).get('lang');
    this.pseudo = inAddress === PSEUDO;
    this.asked = known(inAddress) ? inAddress : remembered();
  }

  private readonly both = $derived(chosen(this.asked, window.navigator.languages));

  get language(): Language {
    return this.both.language;
  }

  get locale(): string {
    return this.both.locale;
  }

  choose(language: Language): void {
    this.asked = language;
    try {
      window.localStorage.setItem(KEY, language);
    } catch {
      // A browser that keeps nothing: the choice lasts as long as the page.
    }
  }
}

function remembered(): string | null {
  try {
    return window.localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export const tongue = new Tongue();
