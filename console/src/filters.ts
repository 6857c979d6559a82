/** Filters in the form of other servers, which are names of one topic here. The command line has the same rules (`meant_filter`). */

/** What was probably meant by a name where `*` is one level and `>` or `**` all that follow; null for all other names. */
export function meantFilter(name: string): string | null {
  if (/[+#]/.test(name)) return null;
  const levels = name.split(name.includes("/") ? "/" : ".").map((level) => WILDCARDS[level] ?? level);
  const ends = levels.indexOf("#");
  const wild = levels.some((level) => level === "+" || level === "#");
  return wild && (ends < 0 || ends === levels.length - 1) ? levels.join("/") : null;
}

const WILDCARDS: Record<string, string> = { "*": "+", "**": "#", ">": "#" };
