// The window against a real agent in a real market: it shows what is, and what its owner presses happens. The story is told in
// one world, chapter by chapter.

import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, onTestFailed, test } from 'vitest';
import type { Snapshot } from '../src/bindings/Snapshot';
import { launch, open } from './browser';
import { pagesOf, type Pages } from './proxy';
import { waitFor, World } from './world';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PICTURES = process.env['SELA_PICTURES'];

let world: World;
let browser: Browser;
let pages: Pages;
let page: Page;
let complaints: string[];

beforeAll(async () => {
  [world, browser] = await Promise.all([World.begin(), launch()]);
  pages = await pagesOf(world.port);
  ({ page, complaints } = await open(browser, { locale: 'en-US', colorScheme: 'dark' }));
});

afterAll(async () => {
  await browser?.close();
  await pages?.close();
  await world?.end();
});

const sentence = (): Promise<string> => page.locator('h1').innerText();
const status = async (): Promise<Snapshot> => JSON.parse(await world.sela('status', '--json')) as Snapshot;

async function says(expected: string | RegExp): Promise<void> {
  await expect.poll(sentence, { timeout: 60_000 }).toMatch(expected);
}

async function picture(name: string): Promise<void> {
  if (PICTURES !== undefined) await page.screenshot({ path: `${PICTURES}/agent-${name}.png` });
}

function tellsItsLogs(): void {
  onTestFailed(async () => {
    process.stderr.write(`\nagent:\n${(await world.log('agent')).slice(-3000)}\n`);
  });
}

test('the address that the agent gives opens Home, and the key leaves the address', async () => {
  tellsItsLogs();
  await page.goto(`${pages.address}/#token=${await world.token()}`);
  await says(/Sharing: your card waits for a job\./);
  expect(new URL(page.url()).hash).toBe('');
  const { cards } = await status();
  const card = page.locator('article.card');
  expect(await card.count()).toBe(cards.length);
  expect(await card.getAttribute('aria-label')).toBe(cards[0]?.description.name);
  expect(await card.innerText()).toContain('SIMULATED');
  expect(await page.locator('.sidebar').innerText()).toContain('connected to test exchange');
  expect(await page.locator('body').innerText()).toContain('LAB: money of no worth');
  await picture('sharing');
});

test('one click on Pause pauses the agent; what the command line resumes, the window shows', async () => {
  tellsItsLogs();
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  await says('Paused until you share again.');
  expect((await status()).pause).toMatchObject({ until_utc_ms: null });
  await page.getByRole('button', { name: 'Pause for …' }).click();
  await page.getByRole('menuitem', { name: 'For 1 hour' }).click();
  await says(/Paused until \d+:\d\d.[AP]M\./);
  const { pause, now } = await status();
  const left = (pause?.until_utc_ms ?? 0) - now.utc_ms;
  expect(left).toBeGreaterThan(3_500_000);
  expect(left).toBeLessThanOrEqual(3_600_000);
  await world.sela('resume');
  await says('Sharing: your card waits for a job.');
});

test('a job earns before its owner’s eyes, and a hand on the mouse takes the card back', async () => {
  tellsItsLogs();
  await world.submit('a stranger’s job');
  await says('Earning on your card.');
  const row = page.locator('.running .row');
  expect(await row.innerText()).toContain('a stranger’s job');
  await expect.poll(() => page.locator('.strip rect.sold').count()).toBeGreaterThan(0);
  await expect.poll(() => row.locator('.money').innerText()).not.toContain('$0.00');
  await page.evaluate(AXE);
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- axe puts itself on the window, untyped
  expect(await page.evaluate(async () => (await (globalThis as any).axe.run()).violations)).toEqual([]);
  await picture('earning');

  await world.moveMouse();
  await says(/Giving the card back to you\.|Not sharing: your card is held\./);
  await says('Not sharing: your card is held.');
  expect(await page.locator('article.card').innerText()).toMatch(
    /Given back at .* \(keyboard or mouse\).*memory free in [\d.]+.m?s/s,
  );
  await picture('held');
  // Nobody moves any more: the card is shared, and the job comes back to it.
  await says('Earning on your card.');
});

test('“End it now” ends it, after it was asked again', async () => {
  tellsItsLogs();
  const [lease] = (await status()).cards.flatMap((card) => (card.lease === null ? [] : [card.lease.lease]));
  await page.getByRole('button', { name: 'End it now a stranger’s job' }).click();
  await page.getByRole('button', { name: 'End it', exact: true }).click();
  await waitFor('the job to be gone', async () => {
    const open = (await status()).cards.flatMap((card) => (card.lease === null ? [] : [card.lease.lease]));
    return !open.includes(lease ?? '');
  });
  await expect.poll(() => page.locator('article.card .last').innerText()).toContain('you ended it');
});

test('a mistake in agent.toml is told with its line, and gone when it is mended', async () => {
  tellsItsLogs();
  const good = await readFile(world.settingsFile(), 'utf8');
  await world.writeSettings(`${good}\n[prise]\n`);
  const notice = page.locator('.notice');
  await expect
    .poll(() => notice.allInnerTexts(), { timeout: 30_000 })
    .toEqual([expect.stringMatching(/agent\.toml has a mistake.*prise/s)]);
  await world.writeSettings(good);
  await expect.poll(() => notice.count(), { timeout: 30_000 }).toBe(0);
});

test('an exchange that is gone is told, and found again', async () => {
  tellsItsLogs();
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  await waitFor('the card to be free', async () => (await status()).cards.every((card) => card.lease === null));
  await world.sela('resume');
  await world.stop('exchange');
  await says('Not sharing: the exchange does not answer.');
  await picture('unreachable');
  await world.startExchange();
  await says(/Sharing|Earning|Preparing|Held|Not sharing: your card is held/);
});

test('an agent that left is missed in words; a new one wants a new key', async () => {
  tellsItsLogs();
  await world.stop('agent');
  await expect
    .poll(() => page.locator('.notice').allInnerTexts(), { timeout: 30_000 })
    .toEqual([expect.stringContaining('The agent stopped answering')]);
  const stranger = await open(browser, { locale: 'id-ID' });
  await stranger.page.goto(pages.address).catch(() => undefined);
  await world.startAgent();
  await expect.poll(sentence, { timeout: 30_000 }).toBe('This page has no key to the agent.');
  await page.goto(`${pages.address}/#token=${await world.token()}`);
  await page.reload();
  await page.locator('article.card').waitFor();
  await stranger.page.goto(pages.address);
  await expect.poll(() => stranger.page.locator('h1').innerText()).toBe('Halaman ini tidak punya kunci ke agen.');
  expect([...complaints, ...stranger.complaints]).toEqual([]);
});
