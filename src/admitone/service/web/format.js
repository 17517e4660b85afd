// Numbers, moments and windows as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const brief = (value) => (Math.abs(value) < 10000 ? whole.format(value) : short.format(value));

export function ago(moment) {
  const seconds = Math.max(0, Math.round((Date.now() - moment) / 1000));
  if (seconds < 5) return "just now";
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

const PARTS = { minute: [4, 2, 2, 2, 2], hour: [4, 2, 2, 2], day: [4, 2, 2], week: [4, 2], month: [4, 2] };

/** hour_2026111510 as 2026-11-15 10:00. */
export function windowName(key) {
  const [kind, digits] = key.split("_");
  if (!PARTS[kind]) return "all time";
  let at = 0;
  const parts = PARTS[kind].map((size) => digits.slice(at, (at += size)));
  if (kind === "week") return `${parts[0]} week ${parts[1]}`;
  const day = parts.slice(0, 3).join("-");
  if (kind === "hour") return `${day} ${parts[3]}:00`;
  if (kind === "minute") return `${day} ${parts[3]}:${parts[4]}`;
  return day;
}

export const windowKind = (key) => key.split("_")[0];

export function bounds(line) {
  return line.lower === line.upper ? "exact" : `${count(line.lower)} – ${count(line.upper)}`;
}
