// The local day: where it begins and ends, in UTC milliseconds. A day may have 23 or 25 hours; nothing here assumes 24.

/** The hour at which "until tomorrow" ends: after the night, before the day. */
const TOMORROW_HOUR = 6;

/** The first moment of the local day that `utc_ms` is in. */
export function startOfDay(utc_ms: number): number {
  const date = new Date(utc_ms);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** The first moment of the next local day. */
export function endOfDay(utc_ms: number): number {
  const date = new Date(utc_ms);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + 1).getTime();
}

/** When "until tomorrow" ends, asked at `utc_ms`: 6:00 of the next local date. */
export function tomorrow(utc_ms: number): number {
  const date = new Date(utc_ms);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + 1, TOMORROW_HOUR).getTime();
}

/** Every third full hour of the local day of `utc_ms`, both midnights included, as the wall clock counts them. */
export function thirdHours(utc_ms: number): number[] {
  const date = new Date(utc_ms);
  const hours = [0, 3, 6, 9, 12, 15, 18, 21, 24];
  return hours.map((hour) => new Date(date.getFullYear(), date.getMonth(), date.getDate(), hour).getTime());
}
