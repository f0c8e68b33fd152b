// The window's components in a real browser, scene by scene: axe finds nothing, every text is translated, nothing moves
// beside a live number, everything is reached by keyboard. With SELA_PICTURES=FOLDER it also takes the pictures for docs.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { launch, open } from './browser';
import { NOW_UTC_MS, SCENES, ZONE, type SceneName } from './scenes';
import { serve, type Served } from './server';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PICTURES = process.env['SELA_PICTURES'];
/** Those of the documentation, or those asked for: "troubled,newer". */
const PICTURED = (process.env['SELA_PICTURED'] ?? 'earning,held,paused,empty,missing').split(',') as SceneName[];
const THEMES = ['dark', 'light'] as const;
const LOCALES = { en: 'en-US', id: 'id-ID' } as const;

interface Look {
  scene: SceneName;
  theme?: (typeof THEMES)[number];
  language?: keyof typeof LOCALES;
  query?: string;
  width?: number;
}

let browser: Browser;
let served: Served;

beforeAll(async () => {
  [browser, served] = await Promise.all([launch(), serve()]);
});

afterAll(async () => {
  await browser.close();
  await served.close();
});

async function look({ scene, theme = 'dark', language = 'en', query = '', width = 1040 }: Look) {
  const opened = await open(browser, {
    colorScheme: theme,
    locale: LOCALES[language],
    timezoneId: ZONE,
    viewport: { width, height: 720 },
  });
  await opened.page.clock.install({ time: NOW_UTC_MS });
  await opened.page.goto(`${served.address}/?${query}#token=${scene}`);
  await opened.page.locator('h1:not(.quiet)').waitFor();
  return opened;
}

async function axe(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any -- axe puts itself on the window, untyped
    const found = await (globalThis as any).axe.run(document, { resultTypes: ['violations'] });
    return found.violations.map(
      (violation: { id: string; nodes: { html: string }[] }) =>
        `${violation.id}: ${violation.nodes.map((node) => node.html).join(' | ')}`,
    );
  });
}

describe.each(Object.keys(SCENES) as SceneName[])('%s', (scene) => {
  test.each(THEMES)('axe finds nothing in the %s theme, and the console is silent', async (theme) => {
    const { page, complaints } = await look({ scene, theme });
    expect(await axe(page)).toEqual([]);
    expect(complaints).toEqual([]);
    await page.context().close();
  });

  test('every text comes from the languages file', async () => {
    const { page } = await look({ scene, query: 'lang=qps' });
    // What the agent or its owner wrote is not ours to translate, nor are names.
    const texts = await page.evaluate(() => {
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      const found: string[] = [];
      for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
        const text = node.textContent?.trim() ?? '';
        const parent = node.parentElement;
        if (
          /\p{L}{2}/u.test(text) &&
          parent?.closest('[translate=no], code, script, style, .value, .figure strong') === null
        )
          found.push(text);
      }
      return found;
    });
    const plain = texts.filter(
      (text) => !text.startsWith('⟦') && !text.endsWith('⟧') && !/^[\d:.\s]+(AM|PM)$/.test(text),
    );
    expect(plain).toEqual([]);
    await page.context().close();
  });

  test('nothing is cut off sideways at twice the size', async () => {
    const { page } = await look({ scene, language: 'id', width: 520 });
    const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    expect(inner).toBeLessThanOrEqual(outer ?? 0);
    await page.context().close();
  });
});

test('live numbers move nothing beside them', async () => {
  const { page } = await look({ scene: 'earning' });
  await page.locator('.card').first().waitFor();
  const boxes = (): Promise<string[]> =>
    page.evaluate(() =>
      [...document.querySelectorAll('h1, h3, p, dd, dt, button, .gauge, svg, .value, .end')].map((element) => {
        const { x, y, height } = element.getBoundingClientRect();
        return `${element.className} ${Math.round(x)} ${Math.round(y)} ${Math.round(height)}`;
      }),
    );
  const before = await boxes();
  for (const seconds of [1, 9, 20]) {
    await page.clock.runFor(seconds * 1000);
    expect(await boxes(), `${seconds} s later`).toEqual(before);
  }
  await page.context().close();
});

test('the countdown counts between events', async () => {
  const { page } = await look({ scene: 'earning' });
  const read = async (): Promise<{ ago: number; left: number }> => {
    const found = /used (\d+).s ago; shares in (\d):(\d\d)/.exec(await page.locator('.lines p').last().innerText());
    return { ago: Number(found?.[1]), left: 60 * Number(found?.[2]) + Number(found?.[3]) };
  };
  const before = await read();
  await page.clock.runFor(10_000);
  const after = await read();
  expect(before.ago + before.left).toBe(300);
  expect(after.ago + after.left).toBe(300);
  expect(after.ago - before.ago).toBeGreaterThanOrEqual(9);
  await page.context().close();
});

test('one click pauses, the menu pauses for a while, one click shares again', async () => {
  const sharing = await look({ scene: 'sharing' });
  served.commands.length = 0;
  await sharing.page.getByRole('button', { name: 'Pause', exact: true }).click();
  await expect.poll(() => served.commands).toEqual([{ type: 'pause', for_ms: null }]);
  await sharing.page.getByRole('button', { name: 'Pause for …' }).focus();
  await sharing.page.keyboard.press('Enter');
  await sharing.page.getByRole('menuitem', { name: 'For 1 hour' }).waitFor();
  expect(await axe(sharing.page)).toEqual([]);
  await sharing.page.keyboard.press('Enter');
  await expect.poll(() => served.commands[1]).toEqual({ type: 'pause', for_ms: 3_600_000 });
  await sharing.page.context().close();

  const paused = await look({ scene: 'paused' });
  await paused.page.getByRole('button', { name: 'Share', exact: true }).click();
  await expect.poll(() => served.commands[2]).toEqual({ type: 'resume' });
  await paused.page.context().close();
});

test('a job is ended only after it was asked again, and Escape goes back to where it was', async () => {
  const { page } = await look({ scene: 'earning' });
  served.commands.length = 0;
  const end = page.getByRole('button', { name: 'End it now SmolLM2 batch' });
  await end.focus();
  await page.keyboard.press('Enter');
  await page.getByText('without saving').waitFor();
  expect(await axe(page)).toEqual([]);
  await page.keyboard.press('Escape');
  await expect.poll(() => end.evaluate((button) => button === document.activeElement)).toBe(true);
  expect(served.commands).toEqual([]);
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'End it', exact: true }).click();
  await expect
    .poll(() => served.commands)
    .toEqual([{ type: 'end_lease', lease: SCENES.earning.snapshot.cards[0]?.lease?.lease }]);
  await page.context().close();
});

test('the strip tells each moment by pointer and by keyboard', async () => {
  const { page } = await look({ scene: 'earning' });
  const strip = page.getByRole('slider');
  const told = page.locator('.readout .told');
  await strip.focus();
  await page.keyboard.press('ArrowLeft');
  expect(await told.innerText()).toMatch(/RTX 4090\s+1:37.PM–2:20.PM\s+“SmolLM2 batch” at \$0.31 an hour/);
  await page.keyboard.press('ArrowDown');
  expect(await strip.getAttribute('aria-valuetext')).toContain('you used keyboard or mouse');
  await page.keyboard.press('Home');
  await page.keyboard.press('ArrowUp');
  for (let hour = 0; hour < 3; hour += 1) await page.keyboard.press('PageUp');
  expect(await told.innerText()).toContain('$0.34');
  const box = await strip.boundingBox();
  if (box === null) throw new Error('the strip has no box');
  await page.mouse.move(box.x + (box.width * 350) / 1440, box.y + box.height * 0.75);
  expect(await told.innerText()).toContain('the card was protected: too hot');
  await page.context().close();
});

test('all of Home is reached with Tab, in reading order', async () => {
  const { page } = await look({ scene: 'earning' });
  const reached: string[] = [];
  for (let presses = 0; presses < 12; presses += 1) {
    await page.keyboard.press('Tab');
    const name = await page.evaluate(() => {
      const element = document.activeElement;
      const own = [...(element?.childNodes ?? [])].filter((node) => !(node as Element).matches?.('[aria-hidden]'));
      return (
        element?.getAttribute('aria-label') ??
        own
          .map((node) => node.textContent)
          .join('')
          .trim()
      );
    });
    reached.push(name);
    if (name.startsWith('End ')) break;
  }
  expect(reached).toEqual([
    'Skip to the page',
    'Home',
    'English',
    'Bahasa Indonesia',
    'Share',
    'Pause',
    'Pause for …',
    'Timeline of RTX 4090 today',
    'End it nowSmolLM2 batch',
  ]);
  await page.context().close();
});

test('another language is one click away and stays', async () => {
  const { page } = await look({ scene: 'sharing' });
  await page.getByRole('button', { name: 'Bahasa Indonesia' }).click();
  expect(await page.locator('h1').innerText()).toContain('Berbagi');
  expect(await page.locator('html').getAttribute('lang')).toBe('id');
  await page.reload();
  await page.locator('.card').waitFor();
  expect(await page.locator('h1').innerText()).toContain('Berbagi');
  await page.context().close();
});

describe.runIf(PICTURES !== undefined)('pictures', () => {
  const looks = PICTURED.flatMap((scene) =>
    THEMES.flatMap((theme) =>
      (Object.keys(LOCALES) as (keyof typeof LOCALES)[]).map((language) => ({ scene, theme, language })),
    ),
  );
  test.each(looks)('$scene-$theme-$language', async ({ scene, theme, language }) => {
    const { page } = await look({ scene, theme, language });
    await page.clock.runFor(1000);
    await page.evaluate(() => document.fonts.ready);
    await page.screenshot({ path: `${PICTURES}/home-${scene}-${theme}-${language}.png` });
    await page.context().close();
  });
});
