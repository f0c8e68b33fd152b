// A real world for the window: an exchange, a tenant with funds, an owner with an agent, a SIMULATED card and a display with a
// mouse, each the real program, told what to do by its own command line. Everything ends with `end`.

import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { openSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

/** Where cargo left the programs; SELA_PROGRAMS names another folder. */
const PROGRAMS = process.env['SELA_PROGRAMS'] ?? fileURLToPath(new URL('../../target/debug/', import.meta.url));
const PATIENCE_MS = 60_000;
const BLINK_MS = 50;

const execute = promisify(execFile);

interface LaidOut {
  environment: Record<string, string>;
  archive: string;
  job: Record<string, unknown>;
}

/** Looks until there is something; how long that took is nobody's assertion. */
export async function waitFor<T>(what: string, look: () => Promise<T | null | false | undefined>): Promise<T> {
  const begun = performance.now();
  let last: unknown;
  while (performance.now() - begun < PATIENCE_MS) {
    try {
      const found = await look();
      if (found !== null && found !== false && found !== undefined) return found;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, BLINK_MS));
  }
  throw new Error(`waited ${PATIENCE_MS / 1000} s in vain for ${what}`, { cause: last });
}

export class World {
  private readonly parts = new Map<string, ChildProcess>();
  private exchangeAddress = '127.0.0.1:0';
  private apiKey = '';
  private display = '';
  port = 0;

  private constructor(
    private readonly folder: string,
    private readonly laidOut: LaidOut,
  ) {}

  static async begin(): Promise<World> {
    const folder = await mkdtemp(join(tmpdir(), 'sela-window-'));
    for (const part of ['config', 'data', 'runtime', 'exchange', 'tenant']) {
      await mkdir(join(folder, part));
      await chmod(join(folder, part), 0o700);
    }
    const { stdout } = await execute(join(PROGRAMS, 'sela-test-lab'), [folder]);
    const world = new World(folder, JSON.parse(stdout) as LaidOut);
    try {
      await world.layOut();
    } catch (error) {
      await world.end();
      throw error;
    }
    return world;
  }

  private async layOut(): Promise<void> {
    this.display = await this.startDisplay();
    await this.startExchange();
    const { tenant, api_key } = await this.admin<{ tenant: string; api_key: string }>('tenant', 'create', 'a tenant');
    this.apiKey = api_key;
    await this.admin('tenant', 'fund', tenant, '50.000000');
    const { invitation } = await this.admin<{ invitation: string }>('owner', 'invite', 'an owner');
    await this.writeSettings(this.settings(invitation));
    await this.sela('images', 'push', this.laidOut.archive);
    await this.startAgent();
  }

  private settings(invitation: string): string {
    return `[market]
url = "http://${this.exchangeAddress}"
invitation = "${invitation}"
name = "the machine under test"

[price]
floor = "0.100000"

[presence]
idle_after_s = 4
cool_off_s = 4
evict_after_s = 1
save_grace_s = 5

[disk]
budget = 1073741824
free_floor = 16777216
`;
  }

  readonly settingsFile = (): string => join(this.folder, 'config/agent.toml');

  async writeSettings(text: string): Promise<void> {
    await writeFile(this.settingsFile(), text);
  }

  async startExchange(): Promise<void> {
    const data = join(this.folder, 'exchange');
    await rm(join(data, 'address'), { force: true });
    const listen = [
      'serve',
      '--lab',
      '--name',
      'test exchange',
      '--free-floor',
      '0',
      '--data',
      data,
      '--listen',
      this.exchangeAddress,
    ];
    this.start('exchange', join(PROGRAMS, 'sela-exchange'), listen);
    this.exchangeAddress = await waitFor('the exchange to listen', async () => {
      const text = await readFile(join(data, 'address'), 'utf8').catch(() => '');
      return text.endsWith('\n') && text.trim();
    });
    await waitFor('the exchange to be ready', async () => (await fetch(`http://${this.exchangeAddress}/readyz`)).ok);
  }

  /** Starts the agent, with the local interface at the same port every time. */
  async startAgent(): Promise<void> {
    if (this.port === 0) this.port = await freePort();
    this.start('agent', join(PROGRAMS, 'sela'), ['agent', 'run', '--lab', '--listen', `127.0.0.1:${this.port}`], {
      ...this.laidOut.environment,
      DISPLAY: this.display,
    });
    await waitFor('the agent to answer', async () => (await this.sela('status', '--json')) !== '');
  }

  /** The key that a page of this agent needs; a new one at every start. */
  async token(): Promise<string> {
    return (await readFile(join(this.folder, 'runtime/token'), 'utf8')).trim();
  }

  /** Submits the test job, which runs until it is ended. */
  async submit(name: string): Promise<string> {
    const file = join(this.folder, 'job.json');
    await writeFile(file, JSON.stringify({ ...this.laidOut.job, name }));
    const { job } = JSON.parse(await this.sela('job', 'submit', '--json', file)) as { job: string };
    return job;
  }

  /** Moves the mouse as a hand does. */
  async moveMouse(): Promise<void> {
    await execute('xdotool', ['mousemove_relative', '--', '3', '-2'], {
      env: { ...process.env, DISPLAY: this.display },
    });
  }

  /** `sela` as owner and tenant type it. */
  async sela(...words: string[]): Promise<string> {
    const { stdout } = await execute(join(PROGRAMS, 'sela'), words, {
      env: { ...this.environment(), SELA_EXCHANGE: `http://${this.exchangeAddress}`, SELA_API_KEY: this.apiKey },
    });
    return stdout;
  }

  private async admin<T>(...words: string[]): Promise<T> {
    const data = join(this.folder, 'exchange');
    const { stdout } = await execute(join(PROGRAMS, 'sela-exchange'), ['admin', '--json', '--data', data, ...words]);
    return JSON.parse(stdout) as T;
  }

  private async startDisplay(): Promise<string> {
    const server = this.start('display', 'Xvfb', ['-displayfd', '3', '-screen', '0', '640x480x24', '-nolisten', 'tcp']);
    const number = await new Promise<string>((resolve, reject) => {
      server.once('exit', () => reject(new Error('Xvfb did not start; `cargo xtask setup` installs it')));
      (server.stdio[3] as Readable).once('data', (text) => resolve(String(text).trim()));
    });
    return `:${number}`;
  }

  private environment(): NodeJS.ProcessEnv {
    const {
      DISPLAY: _display,
      WAYLAND_DISPLAY: _wayland,
      XDG_SESSION_ID: _session,
      XDG_SESSION_TYPE: _type,
      ...rest
    } = process.env;
    return {
      ...rest,
      SELA_CONFIG_DIR: join(this.folder, 'config'),
      SELA_DATA_DIR: join(this.folder, 'data'),
      SELA_RUNTIME_DIR: join(this.folder, 'runtime'),
    };
  }

  private start(name: string, program: string, words: string[], more: NodeJS.ProcessEnv = {}): ChildProcess {
    const log = openSync(join(this.folder, `${name}.log`), 'a');
    const child = spawn(program, words, {
      env: { ...this.environment(), ...more },
      stdio: ['ignore', log, log, 'pipe'],
    });
    this.parts.set(name, child);
    return child;
  }

  /** Asks a part to leave, and waits until it has. */
  async stop(name: 'agent' | 'exchange' | 'display'): Promise<void> {
    const child = this.parts.get(name);
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    await gone;
  }

  async log(name: string): Promise<string> {
    return readFile(join(this.folder, `${name}.log`), 'utf8').catch(() => '');
  }

  async end(): Promise<void> {
    await this.stop('agent');
    await this.stop('exchange');
    await this.stop('display');
    await rm(this.folder, { recursive: true, force: true });
  }
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise<void>((resolve) => server.close(() => resolve()));
  if (address === null || typeof address === 'string') throw new Error('no port is free');
  return address.port;
}
