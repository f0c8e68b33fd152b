// The built window's files as the agent serves them, with the headers that it sends.

import { readFile } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';

const DIST = new URL('../dist/', import.meta.url);
const TYPES: Record<string, string> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript',
  css: 'text/css',
  svg: 'image/svg+xml',
};
/** What the agent sends with its pages: nothing from elsewhere, nothing inline. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'";

export async function file(path: string, response: ServerResponse): Promise<void> {
  const name = path === '/' ? 'index.html' : path.slice(1);
  const type = TYPES[name.split('.').pop() ?? ''];
  if (type === undefined || name.includes('..')) return problem(response, 404, 'nothing at this path');
  const content = await readFile(new URL(name, DIST)).catch(() => null);
  if (content === null) return problem(response, 404, 'nothing at this path');
  response.writeHead(200, { 'content-type': type, 'content-security-policy': POLICY }).end(content);
}

export function problem(response: ServerResponse, status: number, detail: string): void {
  response
    .writeHead(status, { 'content-type': 'application/problem+json' })
    .end(JSON.stringify({ code: 'refused', status, detail }));
}
