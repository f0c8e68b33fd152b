// Serves the built window as the agent does, and in the agent's place the scene that was asked for: `/?scene=earning`. Only
// for looking at components; nothing of it is shipped.

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Command } from '../src/bindings/Command';
import { file, problem } from './pages';
import { SCENES, type Scene, type SceneName } from './scenes';

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

function json(response: ServerResponse, body: unknown): void {
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}
