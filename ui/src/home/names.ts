// Cards' names as their owners say them.

/** "NVIDIA GeForce RTX 4090 (SIMULATED)" → "RTX 4090"; what it leaves out stands beside it, or in the badge. */
export function shortName(name: string): string {
  const short = name
    .replace(/\bSIMULATED\b/gi, '')
    .trimStart()
    .replace(/^NVIDIA\s+/i, '')
    .replace(/^GeForce\s+/i, '')
    .replace(/\(\s*\)/g, '')
    .replaceAll(/\s+/g, ' ')
    .trim();
  return short === '' ? name : short;
}
