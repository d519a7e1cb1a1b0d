// Hide cookie and consent overlays, and return the rules used; nothing is clicked.
async (rules) => {
  const MOST_TEXT = 3000, SHARE = 0.08;
  const hidden = new Set();
  const up = (child) => {
    const node = dom(child);
    return node.assignedSlot || node.parentElement
      || (node.parentNode instanceof ShadowRoot ? node.parentNode.host : null);
  };
  const share = (element) => {
    const box = dom(element).getBoundingClientRect();
    const width = Math.min(box.right, innerWidth) - Math.max(box.left, 0);
    const height = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    return Math.max(0, width) * Math.max(0, height) / (innerWidth * innerHeight);
  };
  const inside = function* inside(element) {
    const todo = [element];
    while (todo.length) {
      const node = todo.pop(), part = dom(node);
      yield node;
      for (const child of part.children) todo.push(child);
      for (const child of part.shadowRoot ? part.shadowRoot.children : []) todo.push(child);
    }
  };
  const isShown = (element) => {
    for (const part of inside(element)) {
      if (share(part) > 0 && getComputedStyle(part).visibility === "visible") return true;
    }
    return false;
  };
  const hide = (element, name) => {
    dom(element).style.setProperty("display", "none", "important");
    hidden.add(name);
  };
  const textOf = (element) => {
    let text = dom(element).innerText || "";
    for (const part of inside(element)) {
      for (const child of dom(part).shadowRoot ? part.shadowRoot.children : [])
        text += ` ${dom(child).innerText || ""}`;
    }
    return text.replace(/\s+/g, " ").trim().toLowerCase();
  };
  const PAGE = "main, article, nav, [role=main], [role=navigation]";
  const FIELDS = "input:not([type=checkbox], [type=radio], [type=hidden], [type=button],"
    + " [type=submit], [type=image]), textarea";
  // The page itself, its navigation, or a form to fill in stays, whatever its text.
  const isPage = (element) => {
    if (dom(element).matches("html, body, header")) return true;
    for (const part of inside(element)) if (dom(part).matches(`${PAGE}, ${FIELDS}`)) return true;
    const length = textOf(element).length;
    return length > MOST_TEXT || (share(element) > 0.9
      && length > 0.6 * (document.body || document.documentElement).innerText.length);
  };
  // Minimum frequency of the words: a page in one fixed box may mention cookies too.
  const speaks = (text) => {
    let count = 0;
    for (const word of rules.subjects) count += text.split(word).length - 1;
    return count > text.length / 400;
  };
  const BUTTONS = "button, a, [role=button], input[type=button], input[type=submit], [onclick]";
  const offers = (element) => {
    for (const node of inside(element)) {
      const part = dom(node);
      if (!part.matches(BUTTONS)) continue;
      const label = (part.value || part.innerText || "").trim().toLowerCase();
      if (label.length < 60 && rules.choices.some((word) => (
        word.length > 2 || /[^a-z]/.test(word) ? label.includes(word) : label === word))) return true;
    }
    return false;
  };
  // The content of a frame of another site is not accessible, so use its name and address.
  const frames = (element) => {
    for (const node of inside(element)) {
      const part = dom(node);
      const called = `${part.id} ${part.name} ${part.title} ${part.src}`;
      if (part.localName === "iframe" && /cookie|consent|gdpr|privacy-?mgmt/i.test(called))
        return true;
    }
    return false;
  };
  const floats = (element) => ["fixed", "sticky"].includes(getComputedStyle(element).position);
  const asks = (element) => floats(element) && share(element) >= SHARE && !isPage(element)
    && (frames(element) || (speaks(textOf(element)) && offers(element)));
  const at = (x, y, root) => dom(root).elementsFromPoint(x, y).flatMap((element) => (
    dom(element).shadowRoot && element.getRootNode() === root
      ? [...at(x, y, element.shadowRoot), element] : [element]));
  const onScreen = () => {
    const elements = new Set();
    for (let row = 0; row < 8; row += 1) {
      for (let column = 0; column < 4; column += 1) {
        const [x, y] = [innerWidth * (column + 0.5) / 4, innerHeight * (row + 0.5) / 8];
        for (const element of at(x, y, window.document)) {
          for (let node = element; node && !elements.has(node); node = up(node)) elements.add(node);
        }
      }
    }
    return [...elements];
  };
  const isVeil = (element) => {
    const style = getComputedStyle(element);
    const alpha = /[,/]\s*([\d.]+)\)$/.exec(style.backgroundColor);
    const dims = (alpha && /^rgba|\//.test(style.backgroundColor) && Number(alpha[1]) > 0.05)
      || Number(style.opacity) < 0.95 || style.backdropFilter !== "none";
    return ["fixed", "absolute"].includes(style.position) && share(element) > 0.8 && dims
      && !isPage(element) && !textOf(element)
      && !dom(element).querySelector("img, picture, video, canvas, svg, iframe, input");
  };
  const unlock = () => {
    for (const element of [document.documentElement, document.body]) {
      if (!element) continue;
      const style = getComputedStyle(element);
      const set = (name, value) => element.style.setProperty(name, value, "important");
      if (["hidden", "clip"].includes(style.overflowY)) set("overflow-y", "auto");
      if (style.position === "fixed") set("position", "static");
      if (style.filter.includes("blur")) set("filter", "none");
    }
    scrollTo({ left: 0, top: 0, behavior: "instant" });
  };

  for (const [name, selectors] of Object.entries(rules.managers)) {
    for (const element of document.querySelectorAll(selectors.join(","))) {
      if (!dom(element).matches("html, body") && isShown(element)) hide(element, name);
    }
  }
  for (const element of document.querySelectorAll(rules.common.join(","))) {
    if (isShown(element) && !isPage(element) && speaks(textOf(element))) hide(element, "common");
  }
  const asking = onScreen().filter(asks);
  for (const element of asking) {
    if (!asking.some((other) => other !== element && dom(other).contains(element)))
      hide(element, "asks");
  }
  if (hidden.size) {
    for (const element of onScreen().filter(isVeil)) hide(element, "veil");
    unlock();
    const frame = () => new Promise((resolve) => {
      requestAnimationFrame(resolve);
      setTimeout(resolve, 100);
    });
    await frame();
    await frame();
  }
  return [...hidden];
}
