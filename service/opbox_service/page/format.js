// Numbers as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  let unit = 0;
  let value = count ?? 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  return perSecond >= 100 ? count(Math.round(perSecond)) : perSecond.toPrecision(2);
}

export function count(number) {
  return (number ?? 0).toLocaleString("en");
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 100 ? Math.round(value) : value.toPrecision(2)} ms`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds ?? 0));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The beginning of a session's id that is enough for people: in a cluster with its node's name. */
export function shortId(id) {
  return id.slice(0, id.indexOf("-") + 9);
}

/** "gpu:0, gpu:1"; of a session whose process does not answer its first device alone is known. */
export function devicesOf(session) {
  return session.devices?.length ? session.devices.join(", ") : session.device;
}

export function clock(secondsSince1970) {
  return new Date(secondsSince1970 * 1000).toLocaleTimeString("en-GB");
}

/** 32 × 64; "scalar" without dimensions, "?" for what is not known. */
export function shape(dimensions) {
  if (!dimensions) return "?";
  if (dimensions.length === 0) return "scalar";
  return dimensions.map((size) => (size < 0 ? "?" : size)).join(" × ");
}
