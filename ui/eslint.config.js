// What the compiler does not hold: above all that nothing but the desktop transport knows of a desktop.

import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import globals from 'globals';
import ts from 'typescript-eslint';
import svelteConfig from './svelte.config.js';

const desktopOnly = {
  patterns: [
    {
      group: ['@tauri-apps/*'],
      message: 'Only src/transport/desktop.ts may know of the desktop: everything else goes through Transport.',
    },
  ],
};

export default ts.config(
  { ignores: ['dist/', 'src/bindings/', 'src/words/keys.ts'] },
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  {
    languageOptions: { globals: { ...globals.browser, ...globals.node } },
    rules: {
      'no-console': 'error',
      'no-restricted-imports': ['error', desktopOnly],
      'no-restricted-globals': [
        'error',
        { name: 'localStorage', message: 'Settings of the window live in src/words/language.svelte.ts only.' },
      ],
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/no-unused-vars': ['error', { ignoreRestSiblings: true, argsIgnorePattern: '^_' }],
    },
  },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: { parserOptions: { parser: ts.parser, extraFileExtensions: ['.svelte'], svelteConfig } },
  },
  { files: ['src/transport/desktop.ts', 'src/transport/desktop.test.ts'], rules: { 'no-restricted-imports': 'off' } },
  { files: ['src/words/language.svelte.ts'], rules: { 'no-restricted-globals': 'off' } },
  { files: ['*.mjs'], rules: { 'no-console': 'off' } },
);
