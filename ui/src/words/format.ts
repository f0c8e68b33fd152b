// Numbers, money and times as people of a locale write them. Every figure that lives on a page comes from here, so that its
// width does not depend on its value more than it must.

/** Keeps a number and its unit on one line. */
const NARROW_SPACE = '\u202f';

/** A value and its unit, apart: units are smaller and dimmer than values. */
export interface Quantity {
  readonly value: string;
  readonly unit: string;
}

export interface Formats {
  /** Two decimals; what is more than nothing and less than a cent says so. `amount` is a decimal string of the agent's. */
  money(amount: string): string;
  celsius(value: number): Quantity;
  watts(milliwatts: number): Quantity;
  percent(value: number): Quantity;
  /** In GB of 2^30 bytes, as cards' memory is sold. */
  memory(bytes: number): Quantity;
  /** What is transferred: whole MB of 2^20 bytes, from a GB on tenths of a GB. */
  size(bytes: number): Quantity;
  /** A span of time: "42 s", "4:18", "1:02:03"; rounded up where it counts down to something. */
  span(ms: number, rounding?: 'up' | 'down'): string;
  /** A measured span of milliseconds. */
  measured(ms: number): string;
  /** A sum of hours: "2 h 10 min". */
  hours(ms: number): string;
  /** A time of day, with the weekday where it is not the day of `today_utc_ms`. */
  moment(utc_ms: number, today_utc_ms: number): string;
  time(utc_ms: number): string;
  hour(utc_ms: number): string;
}

export function formats(locale: string, asset = 'USD'): Formats {
  const money = new Intl.NumberFormat(locale, { style: 'currency', currency: asset });
  const whole = new Intl.NumberFormat(locale, { maximumFractionDigits: 0 });
  const tenths = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const time = new Intl.DateTimeFormat(locale, { hour: 'numeric', minute: '2-digit' });
  const hour = new Intl.DateTimeFormat(locale, { hour: 'numeric' });
  const dated = new Intl.DateTimeFormat(locale, { weekday: 'short', hour: 'numeric', minute: '2-digit' });
  const unit = (name: string, value: number): string =>
    new Intl.NumberFormat(locale, { style: 'unit', unit: name, unitDisplay: 'short' }).format(value);

  return {
    money(amount) {
      const value = Number(amount);
      if (value !== 0 && Math.abs(value) < 0.005)
        return `${value < 0 ? '>' : '<'}${NARROW_SPACE}${money.format(value < 0 ? -0.01 : 0.01)}`;
      return money.format(value === 0 ? 0 : value);
    },
    celsius: (value) => ({ value: whole.format(value), unit: '°C' }),
    watts: (milliwatts) => ({ value: whole.format(milliwatts / 1000), unit: 'W' }),
    percent: (value) => ({ value: whole.format(value), unit: '%' }),
    memory: (bytes) => ({ value: tenths.format(bytes / 2 ** 30), unit: 'GB' }),
    size: (bytes) =>
      bytes < 2 ** 30
        ? { value: whole.format(bytes / 2 ** 20), unit: 'MB' }
        : { value: tenths.format(bytes / 2 ** 30), unit: 'GB' },
    span(ms, rounding = 'up') {
      const seconds = rounding === 'up' ? Math.ceil(ms / 1000) : Math.floor(ms / 1000);
      const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
      const two = (value: number): string => String(value).padStart(2, '0');
      if (h > 0) return `${h}:${two(m)}:${two(s)}`;
      if (m > 0) return `${m}:${two(s)}`;
      return `${s}${NARROW_SPACE}s`;
    },
    measured: (ms) =>
      ms < 1000 ? `${whole.format(ms)}${NARROW_SPACE}ms` : `${tenths.format(ms / 1000)}${NARROW_SPACE}s`,
    hours(ms) {
      const minutes = Math.round(ms / 60_000);
      const [h, m] = [Math.floor(minutes / 60), minutes % 60];
      if (h === 0) return unit('minute', m);
      return m === 0 ? unit('hour', h) : `${unit('hour', h)} ${unit('minute', m)}`;
    },
    moment: (utc_ms, today_utc_ms) =>
      new Date(utc_ms).toDateString() === new Date(today_utc_ms).toDateString()
        ? time.format(utc_ms)
        : dated.format(utc_ms),
    time: (utc_ms) => time.format(utc_ms),
    hour: (utc_ms) => hour.format(utc_ms),
  };
}

/** A quantity as one text. */
export const written = (quantity: Quantity): string => `${quantity.value}${NARROW_SPACE}${quantity.unit}`;
