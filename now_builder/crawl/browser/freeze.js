// Stop animations and players, so that the same page gives the same picture.
(limits) => {
  for (const animation of document.getAnimations()) {
    // Leave animations that follow the scroll, and paused ones, which wait for an event.
    if (animation.playState !== "running" || !(animation.timeline instanceof DocumentTimeline))
      continue;
    try {
      if (Number.isFinite(animation.effect?.getComputedTiming().endTime)) animation.finish();
      // Show the first slide of an endless carousel, which may hide it at its very start.
      else { animation.pause(); animation.currentTime = limits.slide; }
    } catch { /* it cannot be finished */ }
  }
  for (const player of document.querySelectorAll("video, audio")) player.pause();
  const focused = dom(document.activeElement);
  const hasFocus = Boolean(focused && document.activeElement !== document.body && focused.blur);
  if (hasFocus) focused.blur();
  const scrolled = window.scrollX !== 0 || window.scrollY !== 0;
  window.scrollTo({ left: 0, top: 0, behavior: "instant" });
  return {
    url: location.href,
    contentType: document.contentType,
    stirred: hasFocus || scrolled,
    charset: document.characterSet,
    metas: [...document.querySelectorAll("meta[name][content]")]
      .map((meta) => [meta.getAttribute("name"), meta.getAttribute("content")])
      .filter(([name]) => /^\s*(description|robots|tdm-reservation|noise-of-web)/i.test(name)),
  };
}
