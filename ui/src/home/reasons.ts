// The typed reasons and causes of the agent as clauses of a sentence: "…held because {clause}". What holds is decided by the
// agent; `sela why` says the same in its own words.

import type { EndCause } from '../bindings/EndCause';
import type { ForeignUse } from '../bindings/ForeignUse';
import type { HoldReason } from '../bindings/HoldReason';
import { written, type Formats } from '../words/format';
import type { Say } from '../words/say';

/** What a clause is written with: the language, and how long ago (ms) the reason was told, for what counts up or down. */
export interface Telling {
  readonly say: Say;
  readonly show: Formats;
  readonly since_ms: number;
  readonly now_utc_ms: number;
  /** Whether something else holds too, or there is nobody to share with: then the end of this reason promises nothing. */
  readonly among: boolean;
}

export function clause(reason: HoldReason, telling: Telling): string {
  const { say, show, since_ms, now_utc_ms, among } = telling;
  switch (reason.type) {
    case 'input_recent': {
      const idle = reason.idle_ms + since_ms;
      const left = reason.needed_ms - idle;
      const ago = show.span(idle, 'down');
      if (among && left > 0) return say('reason.input_recent_among', { ago, left: show.span(left) });
      return left <= 0
        ? say('reason.input_recent_due', { ago })
        : say('reason.input_recent', { ago, left: show.span(left) });
    }
    case 'signal_unknown':
      return say('reason.signal_unknown', { signal: signalName(reason.signal, say), why: reason.why });
    case 'cool_off': {
      const left = show.span(Math.max(0, reason.remaining_ms - since_ms));
      return say(among ? 'reason.cool_off_among' : 'reason.cool_off', { left });
    }
    case 'foreign_use':
      return foreignClause(reason, telling);
    case 'gamepad_recent': {
      const idle = reason.idle_ms + since_ms;
      const left = reason.needed_ms - idle;
      const ago = show.span(idle, 'down');
      if (left <= 0) return say('reason.gamepad_recent_due', { ago });
      return say(among ? 'reason.gamepad_recent_among' : 'reason.gamepad_recent', { ago, left: show.span(left) });
    }
    case 'engaged':
      return say(`reason.engaged.${reason.kind}`, { program: reason.program });
    case 'playing':
      return say(`reason.playing.${reason.kind}`, { program: reason.program });
    case 'remote_session':
      return say('reason.remote_session', { by: reason.by });
    case 'on_battery':
      return batteryClause(reason.charge, reason.least, telling);
    case 'outside_schedule':
      return reason.opens_utc_ms === null
        ? say('reason.outside_schedule')
        : say('reason.outside_schedule_until', { time: show.moment(reason.opens_utc_ms, now_utc_ms) });
    case 'schedule_unsure':
      return say('reason.schedule_unsure', { why: reason.why });
    case 'settling': {
      if (among) return say('reason.settling_among');
      return say('reason.settling', { left: show.span(Math.max(0, reason.remaining_ms - since_ms)) });
    }
    case 'metered':
      return say('reason.metered');
    case 'card_asleep':
      return say('reason.card_asleep');
    case 'paused':
      return reason.until_utc_ms === null
        ? say('reason.paused')
        : say('reason.paused_until', { time: show.moment(reason.until_utc_ms, now_utc_ms) });
    case 'hot':
      return say('reason.hot', {
        temperature: written(show.celsius(reason.temperature)),
        below: written(show.celsius(reason.resume_below)),
      });
    case 'card_unreadable':
      return say('reason.card_unreadable', { why: reason.why });
    case 'no_isolation':
      return say('reason.no_isolation', { why: reason.why });
    case 'settings_broken':
      return say('reason.settings_broken', { why: reason.why });
    case 'starting':
      return say('reason.starting');
    case 'stopping':
      return say('reason.stopping');
    case 'asleep':
      return say('reason.asleep');
    case 'unknown':
      return say('reason.unknown');
  }
}

/** The same reasons when they are over: what the strip says of a stretch of the past. */
export function pastClause(reason: HoldReason, say: Say): string {
  switch (reason.type) {
    case 'foreign_use':
      return say('strip.why.foreign_use', { program: programName(reason.process, say) });
    case 'playing':
      return say('strip.why.playing', { program: reason.program });
    case 'gamepad_recent':
    case 'engaged':
    case 'remote_session':
    case 'on_battery':
    case 'metered':
    case 'card_asleep':
    case 'outside_schedule':
    case 'schedule_unsure':
    case 'settling':
    case 'input_recent':
    case 'signal_unknown':
    case 'cool_off':
    case 'paused':
    case 'hot':
    case 'card_unreadable':
    case 'no_isolation':
    case 'settings_broken':
    case 'starting':
    case 'stopping':
    case 'asleep':
    case 'unknown':
      return say(`strip.why.${reason.type}`);
  }
}

export function causeClause(cause: EndCause, say: Say): string {
  switch (cause.type) {
    case 'exited':
      return cause.code === 0 ? say('cause.exited') : say('cause.exited_failed', { code: String(cause.code) });
    case 'owner_program':
      return cause.name === null
        ? say('cause.owner_program_unnamed')
        : say('cause.owner_program', { program: cause.name });
    case 'sensor_silent':
      return say('cause.sensor_silent', { what: signalName(cause.what, say) });
    case 'node_fault':
      return say('cause.node_fault', { message: cause.message });
    case 'job_fault':
      return say('cause.job_fault', { message: cause.message });
    case 'out_of_memory':
    case 'wall_limit':
    case 'tenant_cancelled':
    case 'budget_used':
    case 'displaced':
    case 'owner_input':
    case 'owner_command':
    case 'owner_rule':
    case 'shutdown':
    case 'hot':
    case 'card_lost':
    case 'grant_expired':
    case 'lease_expired':
    case 'lost':
    case 'agent_restarted':
    case 'unknown':
      return say(`cause.${cause.type}`);
  }
}

/** Whether a card was given back to its owner, rather than freed by its job's own end. */
export function isGivenBack(cause: EndCause): boolean {
  return cause.type === 'owner_input' || cause.type === 'owner_program' || cause.type === 'owner_command';
}

/** Whether an end protected the card: the red tick of the strip. */
export function isProtection(cause: EndCause): boolean {
  return cause.type === 'hot' || cause.type === 'sensor_silent' || cause.type === 'card_lost';
}

function foreignClause(
  { process, idle_for_ms }: Extract<HoldReason, { type: 'foreign_use' }>,
  { say, show, since_ms, among }: Telling,
): string {
  const program = programName(process, say);
  if (process.vram_used !== null && idle_for_ms !== undefined && !among) {
    const memory = written(show.memory(process.vram_used));
    return say('reason.foreign_idle', { program, memory, left: show.span(Math.max(0, idle_for_ms - since_ms)) });
  }
  if (process.vram_used === null) return say('reason.foreign_use', { program });
  return say('reason.foreign_use_memory', { program, memory: written(show.memory(process.vram_used)) });
}

function batteryClause(charge: number | null, least: number | null, { say, show }: Telling): string {
  const share = (value: number): string => written(show.percent(value));
  if (charge === null) {
    return least === null ? say('reason.on_battery') : say('reason.on_battery_least', { least: share(least) });
  }
  return least === null
    ? say('reason.on_battery_charge', { charge: share(charge) })
    : say('reason.on_battery_charge_least', { charge: share(charge), least: share(least) });
}

function programName(process: ForeignUse, say: Say): string {
  return process.name ?? say('reason.foreign_unnamed', { pid: String(process.pid) });
}

/** The agent names its signals in English; those that are known have a name in every language. */
function signalName(signal: string, say: Say): string {
  switch (signal) {
    case 'input':
      return say('reason.signal.input');
    case 'other programs on the card':
      return say('reason.signal.foreign');
    case 'all signals':
      return say('reason.signal.all');
    case 'gamepad':
      return say('reason.signal.gamepad');
    case 'film or call':
      return say('reason.signal.engaged');
    case 'game':
      return say('reason.signal.playing');
    case 'remote session':
      return say('reason.signal.remote');
    case 'power source':
      return say('reason.signal.power');
    case 'network cost':
      return say('reason.signal.metered');
    case 'sleeping cards':
      return say('reason.signal.sleeping');
    default:
      return signal;
  }
}
