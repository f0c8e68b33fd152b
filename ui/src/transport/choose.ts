// Which way to the agent this page has.

import { DesktopTransport, isDesktop } from './desktop';
import { HttpTransport, takeToken } from './http';
import type { Transport } from './transport';

export function chooseTransport(): Transport {
  if (isDesktop()) return new DesktopTransport();
  return new HttpTransport(window.location.origin, takeToken(window.location, window.history, window.sessionStorage));
}
