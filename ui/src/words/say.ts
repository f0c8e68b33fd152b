// Texts by key, in a language, with their places filled. What a text says is in messages/*.json, which the tray reads too.

import en from '../../messages/en.json';
import id from '../../messages/id.json';
import type { Keys } from './keys';
import type { Language } from './language.svelte';

export type Key = keyof Keys;
type Message = string | { readonly [form: string]: string };
type Places = Readonly<Record<string, string | number>>;

const MESSAGES: Record<Language, Record<Key, Message>> = { en, id };

/** A speaker of one language. */
export type Say = <K extends Key>(key: K, ...places: Keys[K] extends null ? [] : [Keys[K]]) => string;

export function speaker(language: Language, locale: string, pseudo = false): Say {
  const numbers = new Intl.NumberFormat(locale);
  const plurals = new Intl.PluralRules(language);
  return (key, ...[places]) => {
    const message = MESSAGES[language][key];
    const text = typeof message === 'string' ? message : formOf(message, plurals, (places ?? {}) as Places);
    const filled = fill(text, (places ?? {}) as Places, (value) => numbers.format(value));
    return pseudo ? `⟦${filled}${'·'.repeat(Math.ceil(filled.length / 3))}⟧` : filled;
  };
}

function formOf(forms: { readonly [form: string]: string }, plurals: Intl.PluralRules, places: Places): string {
  const form = plurals.select(Number(places['count'] ?? 0));
  return forms[form] ?? forms['other'] ?? '';
}

function fill(text: string, places: Places, number: (value: number) => string): string {
  return text.replaceAll(/\{(\w+)\}/g, (whole, place: string) => {
    const value = places[place];
    if (value === undefined) return whole;
    return typeof value === 'number' ? number(value) : value;
  });
}
