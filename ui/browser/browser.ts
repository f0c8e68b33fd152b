// One Chromium for a file of tests, and pages in it as an owner's would be: language, zone, theme, size.

import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core';

/** Debian's own; SELA_CHROMIUM names another. */
const CHROMIUM = process.env['SELA_CHROMIUM'] ?? '/usr/bin/chromium';
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: CHROMIUM, headless: true, args: FLAGS });
}

/** A page whose console must stay silent: what it complained of is in the list. */
export async function open(
  browser: Browser,
  options: BrowserContextOptions,
): Promise<{ page: Page; complaints: string[] }> {
  const context = await browser.newContext({ viewport: { width: 1040, height: 720 }, ...options });
  const page = await context.newPage();
  const complaints: string[] = [];
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    // That a request was refused is part of some scenes, and the page tells of it in words.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource'))
      complaints.push(message.text());
  });
  return { page, complaints };
}
