// Collect the elements on the first screen, in image pixels, in one call.
(limits) => {
  document.documentElement?.getBoundingClientRect();  // the page's own layout is not counted
  const deadline = performance.now() + limits.milliseconds;
  const doubtful = performance.now() + limits.milliseconds / 2;
  const view = window.visualViewport;
  const factor = limits.width / view.width;
  const left = view.offsetLeft, top = view.offsetTop;
  const screen = { l: left, t: top, r: left + view.width, b: top + limits.height / factor };
  const IMPLICIT = {
    a: "link", area: "link", article: "article", aside: "complementary", button: "button",
    datalist: "listbox", dialog: "dialog", fieldset: "group", figure: "figure",
    footer: "contentinfo", form: "form", h1: "heading", h2: "heading", h3: "heading",
    h4: "heading", h5: "heading", h6: "heading", header: "banner", hr: "separator", img: "img",
    li: "listitem", main: "main", math: "math", menu: "list", meter: "meter", nav: "navigation",
    ol: "list", option: "option", output: "status", p: "paragraph", progress: "progressbar",
    search: "search", select: "combobox", summary: "button", svg: "img", table: "table",
    tbody: "rowgroup", td: "cell", textarea: "textbox", tfoot: "rowgroup", th: "columnheader",
    thead: "rowgroup", tr: "row", ul: "list",
  };
  const INPUTS = {
    button: "button", checkbox: "checkbox", image: "button", number: "spinbutton",
    radio: "radio", range: "slider", reset: "button", search: "searchbox", submit: "button",
  };
  const SKIP = new Set(["script", "style", "template", "noscript", "head", "meta", "link", "title",
    "br", "wbr", "param", "source", "track"]);
  const CONTROLS = new Set(["button", "input", "select", "textarea", "summary", "option", "video",
    "audio"]);
  const REPLACED = new Set(["img", "video", "canvas", "iframe", "object", "embed", "svg", "input",
    "textarea", "select", "button"]);

  const cut = (rect, clip) => ({
    l: Math.max(rect.l, clip.l), t: Math.max(rect.t, clip.t),
    r: Math.min(rect.r, clip.r), b: Math.min(rect.b, clip.b),
  });
  const plain = (rect) => ({ l: rect.left, t: rect.top, r: rect.right, b: rect.bottom });
  const area = (rect) => Math.max(0, rect.r - rect.l) * Math.max(0, rect.b - rect.t);
  const image = (rect) => [
    Math.max(0, (rect.l - left) * factor), Math.max(0, (rect.t - top) * factor),
    Math.min(limits.width, (rect.r - left) * factor),
    Math.min(limits.height, (rect.b - top) * factor),
  ].map((value) => Math.round(value * 100) / 100);

  const roleOf = (element, tag) => {
    const explicit = (element.getAttribute("role") || "").trim().toLowerCase().split(/\s+/)[0];
    if (explicit) return explicit;
    if (tag === "a" || tag === "area") return element.hasAttribute("href") ? "link" : "";
    if (tag === "input") {
      const type = (element.type || "text").toLowerCase();
      return type === "hidden" ? "" : INPUTS[type] || (element.list ? "combobox" : "textbox");
    }
    if (tag === "select") return element.multiple || element.size > 1 ? "listbox" : "combobox";
    if (tag === "img" && element.getAttribute("alt") === "") return "presentation";
    return IMPLICIT[tag] || "";
  };
  const alpha = (colour) => {
    if (colour === "transparent") return 0;
    const match = /(?:,|\/)\s*([\d.]+)(%?)\)$/.exec(colour);
    if (!match || (/^rgb\(/.test(colour) && !colour.includes("/"))) return 1;
    return Number(match[1]) / (match[2] ? 100 : 1);
  };
  const paints = new Map();
  const covers = (element) => {
    let paint = paints.get(element);
    if (paint === undefined) {
      const style = getComputedStyle(element);
      paint = Number(style.opacity) > 0.5 && (REPLACED.has(element.localName)
        || style.backgroundImage !== "none" || alpha(style.backgroundColor) > 0.5);
      // An element that a transparent ancestor hides, such as the next slide, covers nothing.
      paint &&= Element.prototype.checkVisibility.call(element, { opacityProperty: true });
      paints.set(element, paint);
    }
    return paint;
  };
  const up = (child) => {
    const node = dom(child);
    return node.assignedSlot || node.parentElement
      || (node.parentNode instanceof ShadowRoot ? node.parentNode.host : null);
  };
  const within = (node, ancestor) => {
    for (; node; node = up(node)) if (node === ancestor) return true;
    return false;
  };
  const deepest = (x, y) => {
    let top = document.elementFromPoint(x, y);
    while (top && dom(top).shadowRoot) {
      const inner = top.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === top || dom(inner).getRootNode() !== top.shadowRoot) break;
      top = inner;
    }
    return top;
  };
  // Elements drawn at a point, topmost first, including those in open shadow roots.
  const stack = (x, y, root) => {
    const drawn = [];
    for (const element of dom(root).elementsFromPoint(x, y)) {
      if (dom(element).getRootNode() !== root) continue;
      if (dom(element).shadowRoot) drawn.push(...stack(x, y, element.shadowRoot));
      drawn.push(element);
    }
    return drawn;
  };
  const remember = (look) => {
    const cache = new Map();
    return (x, y) => {
      const place = Math.round(x * 2) * 65536 + Math.round(y * 2);
      if (!cache.has(place)) cache.set(place, look(x, y));
      return cache.get(place);
    };
  };
  const topAt = remember(deepest);
  const allAt = remember((x, y) => stack(x, y, window.document));
  const related = (one, other) => within(one, other) || within(other, one);
  // Whether something opaque covers the element at a point. The topmost element, which is much
  // cheaper to find than all of them, mostly decides.
  const coveredAt = (x, y, element) => {
    const top = topAt(x, y);
    if (!top || related(top, element)) return false;
    if (covers(top)) return true;
    for (const other of allAt(x, y)) {
      if (related(other, element)) return false;
      if (covers(other)) return true;
    }
    return false;
  };
  // Share of a 3 x 3 grid of points where nothing opaque covers the element.
  const uncovered = (element, box) => {
    // A page of a hundred thousand elements takes too long: then all elements count as visible.
    if (performance.now() > doubtful) return 1;
    let free = 0;
    for (let row = 0; row < 3; row += 1) {
      for (let column = 0; column < 3; column += 1) {
        const x = box.l + (box.r - box.l) * (column + 0.5) / 3;
        const y = box.t + (box.b - box.t) * (row + 0.5) / 3;
        if (!coveredAt(x, y, element)) free += 1;
      }
    }
    return free / 9;
  };
  const ownText = (element, clip) => {
    let text = "", union = null;
    for (const node of dom(element).childNodes) {
      if (dom(node).nodeType !== Node.TEXT_NODE || !/\S/.test(node.data)) continue;
      if (text.length < limits.text) text += node.data.slice(0, 4 * limits.text) + " ";
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const line of range.getClientRects()) {
        const seen = cut(plain(line), clip);
        if (area(seen) <= 0) continue;
        union = union ? {
          l: Math.min(union.l, seen.l), t: Math.min(union.t, seen.t),
          r: Math.max(union.r, seen.r), b: Math.max(union.b, seen.b),
        } : seen;
      }
    }
    text = text.replace(/\s+/g, " ").trim();
    return [Array.from(text).slice(0, limits.text).join(""), union];
  };
  const valueOf = (element, tag) => {
    if (tag === "input" && !["password", "checkbox", "radio", "file", "hidden"].includes(element.type))
      return element.value || element.placeholder || "";
    if (tag === "textarea") return element.value || element.placeholder || "";
    if (tag === "select") return element.selectedOptions[0]?.textContent || "";
    return "";
  };
  const pictureLoaded = (element, tag) => {
    if (tag === "img") return element.complete && element.naturalWidth > 0;
    if (tag === "video") return element.readyState >= 2 || Boolean(element.poster);
    return true;
  };

  const elements = [];
  let truncated = false;
  // Depth first with a stack of [element, parent's index, clip, transparency, parent's cursor].
  // A page may have removed its root.
  const todo = [...document.children].map((root) => [root, -1, screen, 1, "auto"]);
  while (todo.length) {
    if (elements.length >= limits.count || performance.now() > deadline) { truncated = true; break; }
    const [node, parent, outer, seenThrough, cursor] = todo.pop();
    const element = dom(node);
    const tag = element.localName;
    if (SKIP.has(tag)) continue;
    const style = getComputedStyle(node);
    if (style.display === "none") continue;
    const opacity = seenThrough * Number(style.opacity);
    const fixed = style.position === "fixed" || style.position === "sticky";
    // A fixed box escapes the clipping of its ancestors.
    const clip = style.position === "fixed" ? screen : outer;
    const rect = plain(element.getBoundingClientRect());
    const box = cut(rect, clip);
    let index = parent;
    if (style.display !== "contents" && area(box) > 0) {
      let [text, textBox] = ownText(node, clip);
      if (!text && (tag === "input" || tag === "textarea" || tag === "select")) {
        text = valueOf(element, tag).replace(/\s+/g, " ").trim().slice(0, limits.text);
        textBox = text ? box : null;
      }
      // A frame shows another document, so use its name.
      if (tag === "iframe") {
        const name = element.getAttribute("title") || element.getAttribute("name") || "";
        text = name.slice(0, limits.text);
      }
      const shown = style.visibility === "visible" && opacity > 0.05
        && (element.checkVisibility ? element.checkVisibility() : true);
      const share = shown
        ? uncovered(node, box) * Math.min(1, area(box) / Math.max(area(rect), 1e-6)) : 0;
      index = elements.length;
      elements.push({
        box: image(box),
        tag,
        role: roleOf(element, tag),
        text,
        text_box: textBox ? image(textBox) : null,
        visible: shown && share > 0,
        visible_fraction: Math.round(share * 1000) / 1000,
        interactive: CONTROLS.has(tag) || (tag === "a" && element.hasAttribute("href"))
          || element.isContentEditable || element.tabIndex >= 0 || element.hasAttribute("onclick")
          || (style.cursor === "pointer" && cursor !== "pointer"),
        parent,
        input_type: tag === "input" ? (element.type || "text") : "",
        loaded: pictureLoaded(element, tag),
        background: style.backgroundImage !== "none",
        fixed,
      });
    }
    if (tag === "svg" || tag === "iframe" || tag === "object") continue;
    let inner = clip;
    if (tag !== "html" && tag !== "body" && style.display !== "contents" && style.display !== "inline") {
      const tall = { l: -Infinity, t: -Infinity, r: Infinity, b: Infinity };
      const edge = { ...tall };
      if (style.overflowX !== "visible") { edge.l = rect.l; edge.r = rect.r; }
      if (style.overflowY !== "visible") { edge.t = rect.t; edge.b = rect.b; }
      inner = cut(edge, clip);
    }
    const children = element.shadowRoot ? element.shadowRoot.children
      : tag === "slot" && element.assignedElements().length ? element.assignedElements()
      : element.children;
    for (let place = children.length - 1; place >= 0; place -= 1)
      todo.push([children[place], index, inner, opacity, style.cursor]);
  }
  return { elements, truncated };
}
