// Durations as every door of Tidewheel reads them: `1h30m`, ISO 8601 such as `PT10S`, or a number of seconds.

const NUMBER = String.raw`(\d{1,12}(?:\.\d{1,9})?)`;
const SHORT = new RegExp("^(?:Nw)?(?:Nd)?(?:Nh)?(?:Nm(?!s))?(?:Ns)?(?:Nms)?(?:Nus)?$".replaceAll("N", NUMBER));
const ISO = new RegExp("^P(?:NW)?(?:ND)?(?:T(?!$)(?:NH)?(?:NM)?(?:NS)?)?$".replaceAll("N", NUMBER));
const SECONDS = [604_800, 86_400, 3600, 60, 1, 1e-3, 1e-6];
const SHORTEST = 1;
const LONGEST = 400 * 86_400;

/** Return the seconds between a run's end and the next run, to the microsecond; refuse what the API would refuse. */
export function readInterval(field: string, given: number | string): number {
  const seconds = typeof given === "number" ? given : secondsOf(String(given));
  if (seconds >= SHORTEST && seconds <= LONGEST) return Math.round(seconds * 1e6) / 1e6;
  throw new RangeError(`${field}: '${given}' is not valid; write 1s to 400d, such as 30s, 1h30m, PT10S or 90`);
}

/** Return the seconds of a text; 0 of one that is no duration. */
function secondsOf(text: string): number {
  const parts = (SHORT.exec(text) ?? ISO.exec(text))?.slice(1) ?? [];
  return parts.reduce((total, part, at) => total + Number(part ?? 0) * (SECONDS[at] ?? 0), 0);
}
