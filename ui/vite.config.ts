// How the window's files are built and its unit tests are run. What the tests in a real browser need is in
// vitest.browser.config.ts.

import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vitest/config';

export default defineConfig({
  plugins: [svelte()],
  build: {
    // WebKitGTK 2.40, WebView2 and Safari 16 all read this.
    target: 'es2022',
    // The page's content security policy allows no inline scripts and no data: scripts.
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
  },
  server: {
    // `npm run dev` beside an agent that was started with --listen 127.0.0.1:7351.
    proxy: { '/v1': { target: 'http://127.0.0.1:7351', changeOrigin: true } },
  },
  resolve: process.env['VITEST'] ? { conditions: ['browser'] } : {},
  test: {
    include: ['src/**/*.test.ts'],
    environment: 'happy-dom',
    // A zone that changes its clocks, whatever the machine's is.
    env: { TZ: 'Europe/Berlin' },
  },
});
