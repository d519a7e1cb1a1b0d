// Watch the page, and return a function that reports whether its visible part is at rest.
(limits) => {
  const begun = performance.now();
  // Time of the last visible change, and number of changes.
  let changed = begun, changes = 0, bursts = 0, endless = false;
  // On a busy machine the quiet time may pass before the page runs at all, so its frames since the
  // last change count too. Each costs the renderer time, so only the needed frames are requested.
  let frames = 0, drawn = false, counting = false, ending = 0;
  const count = () => {
    [frames, drawn] = [frames + 1, true];
    counting = frames < limits.frames;
    if (counting) requestAnimationFrame(count);
  };
  // Scripts and style sheets that were added, with the time until which to wait for them.
  const coming = new Map();
  // Elements with changing attributes: the times of their first and last change.
  const restless = new Map();

  const STYLING = new Set(["html", "body", "link", "style"]);
  const note = () => {
    changed = performance.now();
    frames = 0;
    changes += 1;
    ending ||= setTimeout(() => { ending = 0; finish(); }, limits.turn);
  };
  // Pages that appear step by step have longer pauses.
  const noteStep = () => { bursts += performance.now() - changed > limits.burst; note(); };
  const isFetched = (node) => (node.localName === "script" && node.src)
    || (node.localName === "link" && node.href && /\bstylesheet\b/i.test(node.rel));
  const expect = (node) => {
    if (coming.has(node)) return;
    coming.set(node, performance.now() + limits.late);
    for (const end of ["load", "error"])
      node.addEventListener(end, () => { coming.delete(node); note(); }, { once: true });
  };
  const covers = (element, share) => {
    const box = dom(element).getBoundingClientRect();
    const width = Math.min(box.right, innerWidth) - Math.max(box.left, 0);
    const height = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    return width > 0 && height > 0 && width * height >= share * innerWidth * innerHeight;
  };
  const isSeen = (element) => STYLING.has(element.localName) || covers(element, limits.share);
  const noteAttributes = (elements) => {
    const now = performance.now();
    for (const element of elements) {
      if (isFetched(element)) expect(element);
      if (!isSeen(element)) continue;
      let [first, last] = restless.get(element) || [now, now];
      if (now - last > limits.endless) first = now;
      restless.set(element, [first, now]);
      // Do not wait for endless changes, such as those of a ticker.
      if (now - first > limits.endless) { endless = true; continue; }
      noteStep();
    }
  };
  const noteRecords = (records) => {
    const elements = new Set();
    for (const record of records) {
      if (record.type === "attributes") { elements.add(record.target); continue; }
      noteStep();
      for (const node of record.addedNodes) {
        if (dom(node).nodeType !== Node.ELEMENT_NODE) continue;
        for (const part of [node, ...dom(node).querySelectorAll("script, link")])
          if (isFetched(part)) expect(part);
      }
    }
    noteAttributes(elements);
  };
  const observer = new MutationObserver(noteRecords);
  observer.observe(window.document, {
    subtree: true, childList: true, characterData: true, attributes: true,
  });
  // Layout shifts, and painted pictures and texts that are larger than all before.
  const painted = new PerformanceObserver((list) => { if (list.getEntries().length) note(); });
  for (const type of ["layout-shift", "largest-contentful-paint"]) painted.observe({ type });

  // Many scripts load content only after a first sign of a user. These events are not gestures:
  // nothing scrolls, nothing is tapped, and a cancelled touch has no meaning to a page.
  const wake = () => {
    const [x, y, target] = [innerWidth / 2, innerHeight / 2, document.documentElement || window.document];
    const place = { clientX: x, clientY: y, pageX: x, pageY: y };
    const touches = [new Touch({ identifier: 1, target, ...place })];
    const over = { bubbles: true, changedTouches: touches };
    const touch = { ...over, touches, targetTouches: touches };
    document.dispatchEvent(new Event("scroll", { bubbles: true }));
    document.dispatchEvent(new TouchEvent("touchstart", touch));
    document.dispatchEvent(new TouchEvent("touchcancel", over));
  };
  // A script may load a lazy picture separately and show a placeholder until then.
  const isPlaceholder = (picture) => performance.now() - begun < limits.late
    && ["data-src", "data-srcset", "data-lazy-src", "data-lazy", "data-original"]
      .some((name) => picture.hasAttribute(name))
    && (picture.naturalWidth * picture.naturalHeight <= 4
      || picture.currentSrc.startsWith("data:"));
  const loading = () => [...document.images].some((picture) => {
    if (picture.complete && !isPlaceholder(picture)) return false;
    const box = picture.getBoundingClientRect();
    return box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth
      && getComputedStyle(picture).display !== "none";
  });
  const awaited = () => [...coming.values()].some((until) => performance.now() < until);
  // Finish animations, as if a moment had passed; scripts may continue after that.
  let looked = -1, finished = 0;
  const finish = () => {
    if (looked === changes) return;
    for (const animation of document.getAnimations()) {
      if (finished >= limits.finished || animation.playState !== "running"
        || !(animation.timeline instanceof DocumentTimeline)
        || !Number.isFinite(animation.effect?.getComputedTiming().endTime)) continue;
      try { animation.finish(); } catch { continue; }
      finished += 1;
      noteStep();
    }
    looked = changes;
  };

  // A document that ends within its head has no body and is not painted; one without a root is.
  const hasBody = () => Boolean(document.body) || !document.documentElement;
  // The main part between a visible header and footer may still have no size or be empty.
  const takesPlace = (main) => {
    const box = dom(main).getBoundingClientRect(), style = getComputedStyle(main);
    if (box.width > 0 && box.height > 0) return box.right > 0 && box.left < innerWidth;
    return style.display === "contents" || (dom(main).getClientRects().length > 0
      && style.overflowY === "visible" && style.transform === "none");
  };
  const isFilled = (main) => /\S/.test(dom(main).textContent)
    || dom(main).querySelector("img, svg, canvas, video, iframe, object, embed, input");
  const hasMain = () => {
    const mains = [...document.querySelectorAll("main, [role=main]")];
    return !mains.length
      || mains.some((main) => (isFilled(main) ? takesPlace(main) : !covers(main, limits.large)));
  };

  wake();
  return () => {
    noteRecords(observer.takeRecords());
    if (painted.takeRecords().length) note();
    finish();
    const moved = bursts >= limits.bursts;
    const since = performance.now() - changed;
    const wait = (moved ? limits.moved : limits.quiet) - since;
    // A sandboxed document draws no frames and has no scripts that could change it.
    const turns = frames >= limits.frames || (!drawn && since >= limits.sandboxed);
    if (!turns && !counting) {
      counting = true;
      requestAnimationFrame(count);
    }
    const rest = turns && wait <= 0
      && document.fonts.status === "loaded" && document.readyState !== "loading"
      && hasBody() && !awaited() && !loading() && hasMain();
    return { rest, wait, changes, moved, endless, body: hasBody() };
  };
}
