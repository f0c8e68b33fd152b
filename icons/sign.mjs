// The sign as drawings: two upright bars and the gap between them, which is what Sela sells. Each size of the tray has a
// drawing of its own on its own pixels, since scaled ones blur. Colours are those of ui/src/style/tokens.css.

/** States of the tray: the gap hollow, the gap filled, a bar across, a notch above. */
export const STATES = ['sharing', 'earning', 'paused', 'attention'];

/** The bars take the panel's foreground; accent and amber are the window's for that theme. */
export const PANELS = {
  dark: { bars: '#ecebe6', earning: '#35d0a5', attention: '#e3ab4b' },
  light: { bars: '#1c1b18', earning: '#0b8f6f', attention: '#a06a00' },
};

/** In pixels of each size: [x, y, width, height]. */
const TRAY = {
  16: {
    bars: [
      [2, 2, 3, 12],
      [11, 2, 3, 12],
    ],
    fill: [6, 4, 4, 10],
    across: [0, 7, 16, 2],
    low: 6,
    notch: [6, 1, 4, 4],
  },
  22: {
    bars: [
      [3, 3, 4, 16],
      [15, 3, 4, 16],
    ],
    fill: [8, 6, 6, 13],
    across: [0, 10, 22, 2],
    low: 8,
    notch: [8, 1, 6, 5],
  },
  24: {
    bars: [
      [4, 3, 4, 18],
      [16, 3, 4, 18],
    ],
    fill: [9, 6, 6, 15],
    across: [1, 11, 22, 2],
    low: 9,
    notch: [9, 2, 6, 5],
  },
  32: {
    bars: [
      [4, 4, 6, 24],
      [22, 4, 6, 24],
    ],
    fill: [12, 8, 8, 20],
    across: [0, 14, 32, 4],
    low: 12,
    notch: [12, 2, 8, 8],
  },
};
export const TRAY_SIZES = Object.keys(TRAY).map(Number);

const rectangle = ([x, y, width, height], fill) =>
  `<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${fill}"/>`;

/** A rectangle's outline, drawn inside it; as an area, since strokes blur at their corners. */
function frame([x, y, width, height], line, fill) {
  const [innerWidth, innerHeight] = [width - 2 * line, height - 2 * line];
  const outer = `M${x} ${y}h${width}v${height}h${-width}z`;
  const inner = `M${x + line} ${y + line}h${innerWidth}v${innerHeight}h${-innerWidth}z`;
  return `<path fill-rule="evenodd" fill="${fill}" d="${outer}${inner}"/>`;
}

/** One icon of the tray. */
export function tray(state, panel, size) {
  const { bars, fill, across, low, notch } = TRAY[size];
  const colours = PANELS[panel];
  // The notch stands above: the bars make room for it.
  const standing =
    state === 'attention' ? bars.map(([x, y, width, height]) => [x, low, width, y + height - low]) : bars;
  const parts = standing.map((bar) => rectangle(bar, colours.bars));
  // Hollow, not empty: two bare bars are everybody's sign for a pause.
  if (state === 'sharing') parts.push(frame(fill, Math.floor(size / 16), colours.bars));
  if (state === 'earning') parts.push(rectangle(fill, colours.earning));
  if (state === 'paused') parts.push(rectangle(across, colours.bars));
  if (state === 'attention') parts.push(rectangle(notch, colours.attention));
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${size}" height="${size}" viewBox="0 0 ${size} ${size}">${parts.join('')}</svg>\n`;
}

/** The app's icon: the sign, earning, on a tile. Every edge lies on a pixel at 32, 64, 128, … */
export function app() {
  const { bars, earning } = PANELS.dark;
  const parts = [
    `<rect width="512" height="512" rx="96" fill="#1b1b19"/>`,
    rectangle([128, 112, 64, 288], bars),
    rectangle([320, 112, 64, 288], bars),
    rectangle([208, 160, 96, 240], earning),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="512" height="512" viewBox="0 0 512 512">${parts.join('')}</svg>\n`;
}
