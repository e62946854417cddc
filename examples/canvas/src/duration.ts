import { BoxkeeperError } from './outcome.js';

const units: Record<string, number> = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1_000, ms: 1, us: 1e-3, ns: 1e-6 };

/** The milliseconds of a duration of the contract, such as "1d12h". "never" has none and is refused, like anything else that is not a length. */
export function milliseconds(text: string): number {
  if (!/^(\d+(d|h|ms|m|us|s|ns))+$/.test(text)) throw new BoxkeeperError('Invalid', `${JSON.stringify(text)} is not a length; write it like 90s, 15m or 30d`);
  return [...text.matchAll(/(\d+)(d|h|ms|m|us|s|ns)/g)].reduce((sum, [, n, unit]) => sum + Number(n) * (units[unit ?? ''] ?? NaN), 0);
}
