// Wait until the page is at rest: fonts, pictures on the screen, a DOM that no longer changes.
async (limits) => {
  const begun = performance.now();
  let changed = begun;
  // Scripts that were added now, by the time at which nobody waits for them any more.
  const coming = new Map();
  const noted = (records) => {
    if (records.length) changed = performance.now();
    for (const node of records.flatMap((record) => [...record.addedNodes])) {
      if (node.localName !== "script" || !node.src) continue;
      coming.set(node, performance.now() + limits.late);
      for (const end of ["load", "error"])
        node.addEventListener(end, () => { coming.delete(node); changed = performance.now(); });
    }
  };
  const observer = new MutationObserver(noted);
  observer.observe(document, { subtree: true, childList: true, characterData: true });
  const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  // What the browser leaves to the page's scripts, many load at a first sign of life alone. These
  // are no gestures: nothing scrolls, nothing is tapped, and a touch that is cancelled has no
  // meaning to a page.
  const wake = () => {
    const [x, y, target] = [innerWidth / 2, innerHeight / 2, document.documentElement || document];
    const place = { clientX: x, clientY: y, pageX: x, pageY: y };
    const touches = [new Touch({ identifier: 1, target, ...place })];
    const over = { bubbles: true, changedTouches: touches };
    const touch = { ...over, touches, targetTouches: touches };
    document.dispatchEvent(new Event("scroll", { bubbles: true }));
    document.dispatchEvent(new TouchEvent("touchstart", touch));
    document.dispatchEvent(new TouchEvent("touchcancel", over));
  };
  // A lazy picture may be fetched on the side, with a placeholder in its place until it is there.
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
  if (limits.milliseconds > 0) wake();
  let settled = false;
  while (!settled && performance.now() - begun < limits.milliseconds) {
    await pause(25);
    settled = performance.now() - changed >= limits.quiet && document.fonts.status === "loaded"
      && document.readyState !== "loading" && !awaited() && !loading();
  }
  observer.disconnect();
  return settled;
}
