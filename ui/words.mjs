// Reads messages/*.json, holds that every language says everything with the same places, and writes src/words/keys.ts, so
// that a wrong key or a forgotten place does not compile. `--check` only compares. The tray reads the same JSON.

import { readFileSync, writeFileSync } from 'node:fs';

const HERE = new URL('.', import.meta.url);
const FIRST = 'en';
const LANGUAGES = ['en', 'id'];
const PLURAL_FORMS = { en: ['one', 'other'], id: ['other'] };

const read = (language) => JSON.parse(readFileSync(new URL(`messages/${language}.json`, HERE), 'utf8'));
const places = (text) => [...text.matchAll(/\{(\w+)\}/g)].map((match) => match[1]);

/** The places of one message; a plural also has `count`, by which its form is chosen. */
function placesOf(message) {
  const texts = typeof message === 'string' ? [message] : Object.values(message);
  const found = new Set(texts.flatMap(places));
  if (typeof message !== 'string') found.add('count');
  return [...found].sort();
}

function problems(messages) {
  const found = [];
  for (const language of LANGUAGES) {
    for (const [key, message] of Object.entries(messages[language])) {
      const first = messages[FIRST][key];
      if (first === undefined) found.push(`${language}.json says "${key}", which ${FIRST}.json does not`);
      else if (placesOf(first).join() !== placesOf(message).join())
        found.push(
          `${language}.json: "${key}" has the places {${placesOf(message)}}, ${FIRST}.json {${placesOf(first)}}`,
        );
      if (typeof message !== 'string' && Object.keys(message).sort().join() !== PLURAL_FORMS[language].join())
        found.push(`${language}.json: "${key}" must have the forms ${PLURAL_FORMS[language]}`);
    }
    for (const key of Object.keys(messages[FIRST]))
      if (!(key in messages[language])) found.push(`${language}.json does not say "${key}"`);
  }
  return found;
}

function keysFile(messages) {
  const lines = Object.entries(messages).map(([key, message]) => {
    const fields = placesOf(message).map((place) => `${place}: ${place === 'count' ? 'number' : 'string | number'}`);
    return `  '${key}': ${fields.length === 0 ? 'null' : `{ ${fields.join('; ')} }`};`;
  });
  return `// Written by words.mjs from messages/en.json: \`npm run words\`. Not by hand.\n\n/** Every message and the places in it. */\nexport interface Keys {\n${lines.join('\n')}\n}\n`;
}

const messages = Object.fromEntries(LANGUAGES.map((language) => [language, read(language)]));
const found = problems(messages);
const target = new URL('src/words/keys.ts', HERE);
const text = keysFile(messages[FIRST]);
if (process.argv.includes('--check')) {
  let current = '';
  try {
    current = readFileSync(target, 'utf8');
  } catch {
    // Not there is as good as stale.
  }
  if (current !== text) found.push('src/words/keys.ts is stale: run `npm run words --workspace ui` and commit it');
} else if (found.length === 0) writeFileSync(target, text);
if (found.length > 0) {
  console.error(found.join('\n'));
  process.exit(1);
}
