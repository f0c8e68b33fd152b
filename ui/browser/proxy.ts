// The window's pages beside an agent that does not serve them itself: files from dist, everything else passed on to it. An
// agent that serves its pages is opened directly.

import { createServer, request as ask } from 'node:http';
import type { AddressInfo } from 'node:net';
import { file, problem } from './pages';

export interface Pages {
  readonly address: string;
  close(): Promise<void>;
}

export async function pagesOf(port: number): Promise<Pages> {
  const own = await fetch(`http://127.0.0.1:${port}/`);
  if (own.headers.get('content-type')?.startsWith('text/html') === true)
    return { address: `http://127.0.0.1:${port}`, close: () => Promise.resolve() };

  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    if (!url.pathname.startsWith('/v1/')) return void file(url.pathname, response);
    const { origin: _origin, ...headers } = request.headers;
    const onward = ask(
      {
        port,
        host: '127.0.0.1',
        path: request.url,
        method: request.method,
        headers: { ...headers, host: `127.0.0.1:${port}` },
      },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(response);
        // An agent that is killed ends its answer in the middle: so must this.
        answer.on('close', () => response.destroy());
      },
    );
    onward.on('error', (error) => (response.headersSent ? response.destroy() : problem(response, 502, String(error))));
    response.on('close', () => onward.destroy());
    request.pipe(onward);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port: at } = server.address() as AddressInfo;
  return {
    address: `http://127.0.0.1:${at}`,
    close: () => {
      server.closeAllConnections();
      return new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}
