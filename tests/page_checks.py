"""What a browser can measure of a page: overflow, contrast, and the size of a chart's text."""

SIZES = (1440, 1024, 390)
CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const bright = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, place) => sum + v * [0.2126, 0.7152, 0.0722][place], 0);
  const known = new Map();
  const behind = (e) => {
    if (!e) return [255, 255, 255];
    if (!known.has(e)) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      known.set(e, colour.length === 3 || colour[3] > 0 ? colour : behind(e.parentElement));
    }
    return known.get(e);
  };
  const low = [];
  const texts = 'p, th, td, li, dd, dt, a, b, h1, h2, h3, span, text, summary, button, code';
  for (const e of document.querySelectorAll(texts)) {
    if (!e.textContent.trim() || !e.getClientRects().length || e.disabled) continue;
    const style = getComputedStyle(e);
    if (style.opacity === '0') continue;
    const colour = parse(e.tagName === 'text' ? style.fill : style.color);
    const [a, b] = [bright(colour), bright(behind(e))].sort((x, y) => y - x);
    const words = e.textContent.trim().slice(0, 40);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(`${e.tagName} ${words}`);
  }
  return low;
}"""
SMALL = """() => [...document.querySelectorAll('svg text')].filter((text) => {
  const svg = text.ownerSVGElement, { width } = svg.getBoundingClientRect();
  const size = parseFloat(getComputedStyle(text).fontSize);
  return width && size * width / svg.viewBox.baseVal.width < 11;
}).map((text) => text.textContent)"""
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"


def complaints(page):
    """Return the faults of an open page at three widths, light and dark."""
    wrong = []
    page.evaluate(OPEN)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in SIZES:
            page.set_viewport_size({"width": width, "height": 900})
            where = f"{width} px, {scheme}"
            wrong += [f"{where}: {text}: contrast" for text in page.evaluate(CONTRAST)]
            wrong += [f"{where}: {text}: small" for text in page.evaluate(SMALL)]
            if beyond := page.evaluate(WIDE):
                wrong.append(f"{where}: {beyond} px too wide")
    return wrong
