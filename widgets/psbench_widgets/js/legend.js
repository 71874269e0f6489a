// The legend above a chart: its words, in how many columns they stand, and words that go on in another line.

// pixels: the font, the area of a symbol unless a chart has its own, the space between columns, and between a
// symbol and its word
export const LOOK = { labelFontSize: 11, symbolSize: 60, columnPadding: 5, labelOffset: 3 };
const LETTER = 6.9; // pixels of a letter, of the usual ones
const SLACK = 2; // pixels that measuring may be off by

// What has a legend in a specification: the channels of all its layers.
function* channels(part) {
  for (const channel of Object.values(part?.encoding ?? {}))
    if (channel?.legend && channel.scale?.domain) yield channel;
  for (const layer of part?.layer ?? []) yield* channels(layer);
}

// The words of a chart's legend, and the area of its symbols.
export function legendOf(spec) {
  const [first] = channels(spec);
  return { words: (first?.scale.domain ?? []).map(String), symbol: first?.legend.symbolSize };
}

// In how many columns the words stand, as an expression of Vega: in as many as there is room for in the width
// of the chart. `measure(word)`: pixels of a word.
export function columnsOf({ words, symbol = LOOK.symbolSize }, measure) {
  const around = Math.sqrt(symbol) + LOOK.labelOffset + LOOK.columnPadding + SLACK;
  const wide = words.map((word) => measure(word) + around);
  const widest = (columns, first) => Math.max(...wide.filter((_, place) => place % columns === first));
  const room = (columns) =>
    Array.from({ length: columns }, (_, first) => widest(columns, first)).reduce((sum, each) => sum + each);
  const counts = words.map((_, place) => words.length - place).filter((count) => count > 1);
  return `${counts.map((count) => `width >= ${Math.ceil(room(count))} ? ${count} : `).join("")}1`;
}

// How many letters of a name a chart of this width has room for, beside its axis and the symbol.
export const lettersIn = (width) => Math.floor((width - 66) / LETTER);

// Whether a name of the legend is longer than that.
export const isWrapped = (spec, letters) => legendOf(spec).words.some((word) => word.length > letters);

// The names of a legend that are longer than there is room for go on in a second line.
export function withWrappedLegend(part, letters) {
  if (!isWrapped(part, letters)) return part;
  const encoding = Object.fromEntries(
    Object.entries(part.encoding ?? {}).map(([name, channel]) => {
      if (!channel?.legend || !channel.scale?.domain) return [name, channel];
      const lines = Object.fromEntries(channel.scale.domain.map((label) => [label, wrapped(label, letters)]));
      const labelExpr = `(${JSON.stringify(lines)})[datum.label]`;
      return [name, { ...channel, legend: { ...channel.legend, labelExpr, labelLimit: 0 } }];
    }),
  );
  const layer = part.layer?.map((each) => withWrappedLegend(each, letters));
  return { ...part, ...(part.encoding && { encoding }), ...(layer && { layer }) };
}

const SHORTEST = 10; // letters of a word that is not cut in two

function wrapped(label, letters) {
  const lines = [""];
  // a number stays beside its unit, and a word that is longer than a line goes on in the next
  const part = new RegExp(`.{1,${Math.max(letters, SHORTEST)}}`, "gu");
  const words = String(label).split(/ (?!s\b|ms\b)/);
  for (const word of words.flatMap((each) => each.match(part) ?? [])) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    longer.length <= letters || !lines.at(-1) ? (lines[lines.length - 1] = longer) : lines.push(word);
  }
  return lines;
}
