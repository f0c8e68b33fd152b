// Serves the built window as the agent does, and in the agent's place the scene that was asked for: `/?scene=earning`. Only
// for looking at components; nothing of it is shipped.

import { readFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Command } from '../src/bindings/Command';
import { SCENES, type Scene, type SceneName } from './scenes';

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

export interface Served {
  readonly address: string;
  /** Commands that came, oldest first. */
  readonly commands: Command[];
  close(): Promise<void>;
}

export async function serve(): Promise<Served> {
  const commands: Command[] = [];
  const server = createServer((request, response) => {
    void answer(request, response, commands).catch((error: unknown) => {
      response.writeHead(500).end(String(error));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return { address: `http://127.0.0.1:${port}`, commands, close: () => closed(server) };
}

async function closed(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise<void>((resolve) => server.close(() => resolve()));
}

async function answer(request: IncomingMessage, response: ServerResponse, commands: Command[]): Promise<void> {
  const url = new URL(request.url ?? '/', 'http://localhost');
  if (!url.pathname.startsWith('/v1/')) return file(url.pathname, response);
  const scene: Scene = SCENES[request.headers.authorization?.replace('Bearer ', '') as SceneName] ?? SCENES.stranger;
  if (scene.snapshot === null) return problem(response, 502, 'nobody listens on 127.0.0.1:7351');
  if (scene.stranger) return problem(response, 401, "the agent's token is missing or wrong");
  switch (url.pathname) {
    case '/v1/events': {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const event = { number: 1, event: { type: 'snapshot', ...scene.snapshot } };
      response.write(`: alive\n\ndata: ${JSON.stringify(event)}\n\n`);
      return;
    }
    case '/v1/strip':
      return scene.strip === null ? problem(response, 404, 'nothing at this path') : json(response, scene.strip);
    case '/v1/commands': {
      let body = '';
      for await (const part of request) body += String(part);
      commands.push(JSON.parse(body) as Command);
      return json(response, { type: 'done' });
    }
    default:
      return problem(response, 404, 'nothing at this path');
  }
}

async function file(path: string, response: ServerResponse): Promise<void> {
  const name = path === '/' ? 'index.html' : path.slice(1);
  const type = TYPES[name.split('.').pop() ?? ''];
  if (type === undefined || name.includes('..')) return problem(response, 404, 'nothing at this path');
  const content = await readFile(new URL(name, DIST)).catch(() => null);
  if (content === null) return problem(response, 404, 'nothing at this path');
  response.writeHead(200, { 'content-type': type, 'content-security-policy': POLICY }).end(content);
}

function json(response: ServerResponse, body: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

function problem(response: ServerResponse, status: number, detail: string): void {
  response
    .writeHead(status, { 'content-type': 'application/problem+json' })
    .end(JSON.stringify({ code: 'refused', status, detail }));
}
